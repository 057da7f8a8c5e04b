package operations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// refusal is the reason why a failover is refused, with advice for a shell and for a statement. A command is told the
// one as a fail.Error, a statement the other as a *console.Error.
type refusal struct {
	statement fail.Error // Hint is advice for a statement
	command   string     // advice for a shell
}

// advice is what to run instead, in a shell and as a statement.
type advice struct{ command, statement string }

// refuse returns the refusal of a numbered message.
func refuse(number int, do advice, format string, a ...any) error {
	return &refusal{fail.Numberedf(number, format, a...).WithHint("%s", do.statement), do.command}
}

// notNow returns the refusal of a failover that the state of the group does not allow, and that has no number.
func notNow(do advice, format string, a ...any) error {
	return &refusal{fail.Error{Kind: fail.Unhealthy, Hint: do.statement, Err: fmt.Errorf(format, a...)}, do.command}
}

// Error returns the text for a command.
func (r *refusal) Error() string { return r.forCommand().Error() }

// forCommand returns the refusal with the advice for a shell.
func (r *refusal) forCommand() fail.Error { return r.statement.WithHint("%s", r.command) }

// Unwrap returns the refusal as each way of asking tells it.
func (r *refusal) Unwrap() []error {
	s := r.statement
	return []error{r.forCommand(), &console.Error{State: s.SQLState(), Number: s.Number, Message: s.Err.Error(), Hint: s.Hint}}
}

// noQuorum returns an error without an answer of the quorum as one of the kind Unhealthy, and any other as it is. The
// answers of the quorum's members go to the log. A node that was removed gets none.
func (s *Service) noQuorum(err error) error {
	if !errors.Is(err, etcd.ErrNoQuorum) {
		return err
	}
	s.Logger.Warn("no majority of the quorum answers what an administrator asks for", "err", err)
	if s.Status.Removed() {
		return s.removed()
	}
	return fail.Unhealthyf("no majority of the quorum answers %s: %w; see coterie status, and log/agent.log", s.Self, etcd.ErrNoQuorum)
}

// afterRemoval is what to do with a node that is no member any more.
const afterRemoval = "To take the node apart: coterie leave; to bring this machine back: coterie join in an empty directory"

// removed returns the error of what is asked of a node that is no member any more.
func (s *Service) removed() error {
	return fail.Unhealthyf("%s was removed from the group and can change nothing of it; run the command on a member%s; to bring this machine back: coterie join in an empty directory",
		s.Self, s.another())
}

// another returns another member that answers this node, as an example; "": none is known to.
func (s *Service) another() string {
	v := s.Agent.View()
	if g := s.Members.Group(); g != nil && v != nil {
		for _, r := range g.Replicas {
			if r.ID != s.Self && slices.Contains(v.Reach, r.ID) {
				return ", such as " + string(r.ID)
			}
		}
	}
	return ""
}

// chosen returns the synchronized secondary that leads after a planned failover without a named target; "" if none may.
// One whose server runs comes before one that is counted still or already, such as the primary of before.
func chosen(x etcd.Snapshot) (id ag.ReplicaID) {
	for _, m := range x.Record.State.V {
		if r, _ := x.Group.Replica(m.ID); r.Options.Maintenance != nil {
			continue
		}
		var st agent.Status
		if json.Unmarshal(x.Statuses[m.ID], &st) == nil && st.Server == ag.ServerRecovery && st.Quarantine == "" {
			return m.ID
		}
		id = cmp.Or(id, m.ID)
	}
	return id
}

// counted returns the names of the secondaries that the record counts.
func counted(r ag.Record) (names []string) {
	for _, m := range r.State.V {
		names = append(names, string(m.ID))
	}
	return names
}

// noPrimary returns the refusal of a planned failover in a group that has no primary.
func noPrimary(group string) error {
	return notNow(advice{"see coterie status", "SELECT * FROM coterie.record"},
		"availability group %q has no primary at the moment, and a planned failover needs one", group)
}

// bereft reports whether the replica that the record names as the primary says that it holds another copy than the one
// that led, as after its node was restored. It does not lead with it, unless an operator forces that.
func bereft(x etcd.Snapshot, id ag.ReplicaID) bool {
	var st agent.Status
	led := x.Record.State
	return json.Unmarshal(x.Statuses[id], &st) == nil && led.Leader == id && st.Copy != "" && st.Copy != led.Copy && st.Server != ag.ServerWritable
}

// failoverTarget returns the replica that a failover is for: the one that was named, or else the first synchronized
// one. It refuses all that can be known beforehand to be impossible, or to lose commits whose loss is not accepted.
// These are all refusals, however it was asked for.
func failoverTarget(x etcd.Snapshot, to ag.ReplicaID, force bool) (ag.ReplicaID, error) {
	group, record := x.Group, x.Record
	if to == "" {
		to = chosen(x)
	}
	r, known := group.Replica(to)
	_, isCounted := record.State.InV(to)
	led := record.Epoch.Phase == ag.PhaseLead
	switch {
	case to == "" && !led:
		return "", noPrimary(group.Name)
	case to == "" && len(record.State.V) > 0:
		return "", notNow(advice{"coterie maintenance off NAME for one of them, and coterie failover --to it", "MODIFY REPLICA … WITH (MAINTENANCE = OFF) for one of them"},
			"every synchronized secondary is under maintenance: %s", strings.Join(counted(record), ", "))
	case to == "":
		return "", notNow(advice{"name a replica with --to and --allow-data-loss to accept that", "FORCE_FAILOVER_ALLOW_DATA_LOSS accepts that"},
			"no secondary is synchronized: a failover now would lose commits")
	case !known || !r.Part():
		return "", refuse(41167, advice{"see coterie status", "SELECT replica_server_name FROM sys.availability_replicas"},
			"availability replica %q is not in availability group %q", to, group.Name)
	case !r.HasData():
		return "", refuse(41121, advice{"name another replica with --to", "run it on the replica that is to lead, or say FAILOVER TO N'name'"},
			"%s is a witness and cannot become the primary", to)
	case led && record.Epoch.Leader == to && !(force && bereft(x, to)):
		return "", refuse(41122, advice{"name another replica with --to", "run it on the replica that is to lead, or say FAILOVER TO N'name'"},
			"cannot fail over availability group %q to %s: it is the primary already", group.Name, to)
	case r.Join != "":
		return "", refuse(41142, advice{"on it run ALTER AVAILABILITY GROUP … JOIN with coterie sql first", "ALTER AVAILABILITY GROUP … JOIN on it first"},
			"%s cannot become the primary: it has not joined", to)
	case x.Op != nil && opEpoch(x.Op) == record.Epoch.Epoch:
		return "", refuse(41113, advice{"wait for its end: coterie status", "wait for its end: SELECT * FROM coterie.record"},
			"cannot fail over availability group %q: a failover is under way", group.Name)
	case force:
		return to, nil
	case !led:
		return "", noPrimary(group.Name)
	case r.Options.Maintenance != nil:
		return "", refuse(41142, advice{"coterie maintenance off " + string(to) + " ends that", "MODIFY REPLICA … WITH (MAINTENANCE = OFF) ends that"},
			"%s is under maintenance %s", to, *r.Options.Maintenance)
	case r.AvailabilityMode == ag.AsynchronousCommit:
		return "", refuse(41142, advice{"coterie replica set " + string(to) + " AVAILABILITY_MODE=SYNCHRONOUS_COMMIT, and wait for it; or accept the loss with --allow-data-loss", "MODIFY REPLICA … WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT), and wait until it is SYNCHRONIZED; FORCE_FAILOVER_ALLOW_DATA_LOSS accepts the loss of commits"},
			"%s cannot become the primary of availability group %q: it commits asynchronously, and commits could be lost", to, group.Name)
	case r.Suspended:
		return "", refuse(41142, advice{"coterie replica resume " + string(to) + ", and wait until it is SYNCHRONIZED", "ALTER AVAILABILITY GROUP … RESUME on it, and wait until it is SYNCHRONIZED"},
			"%s cannot become the primary of availability group %q: its data movement is suspended, and commits could be lost", to, group.Name)
	case !isCounted || record.State.K == 0:
		return "", refuse(41142, advice{"wait for it, or accept the loss with --allow-data-loss", "wait until it is SYNCHRONIZED; FORCE_FAILOVER_ALLOW_DATA_LOSS accepts the loss of commits"},
			"%s cannot become the primary of availability group %q: %w, and commits could be lost", to, group.Name, errNotCounted)
	}
	return to, nil
}

// errNotCounted is in the refusal of a replica that may not have every commit.
var errNotCounted = errors.New("it is not SYNCHRONIZED")

// orSilent returns the refusal of a failover to a named replica. Of one that is not synchronized and does not answer
// this node it says so: to wait would not help.
func (s *Service) orSilent(x etcd.Snapshot, to ag.ReplicaID, err error) error {
	v := s.Agent.View()
	var r *refusal
	if !errors.As(err, &r) || !errors.Is(r.statement.Err, errNotCounted) || v == nil || to == "" || to == s.Self || slices.Contains(v.Reach, to) {
		return err
	}
	return refuse(41142, advice{"start its node first: coterie status; or name another replica with --to", "start its node first, or fail over to another replica"},
		"%s cannot become the primary of availability group %q: it does not answer %s", to, x.Group.Name, s.Self)
}

// electing is how long the rest of a removal waits for the quorum, whose leader may have been the member: the others
// elect another one.
const electing = 30 * time.Second

// afterElection runs a step of a removal anew while the quorum elects a leader.
func afterElection(ctx context.Context, step func() error) error {
	ctx, cancel := context.WithTimeout(ctx, electing)
	defer cancel()
	for {
		if err := step(); !errors.Is(err, etcd.ErrNoQuorum) || retry.Sleep(ctx, 250*time.Millisecond) != nil {
			return err
		}
	}
}

// unfinished adds to the error of a removal what of it was done, and how it goes on.
func (s *Service) unfinished(err error, again, done string) error {
	if err = s.noQuorum(err); err == nil {
		return nil
	}
	kind := fail.Ordinary
	var known fail.Error
	if errors.As(err, &known) {
		kind = known.Kind
	}
	return fail.Error{Kind: kind, Err: fmt.Errorf("the removal is not complete: %s. Run %s again, which continues it: %s", done, again, err.Error())}
}
