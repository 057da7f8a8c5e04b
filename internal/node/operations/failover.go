package operations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// Failover requests a failover through the store, so that the responsible member carries it out, and waits for its end.
func (s *Service) Failover(ctx context.Context, req api.FailoverRequest) (api.FailoverResult, error) {
	start := time.Now()
	x, err := s.Store.Read(ctx)
	if err != nil {
		return api.FailoverResult{}, s.noQuorum(err)
	}
	if req.AllowDataLoss && s.unanswered(x) {
		x.Op = nil // its revision still guards what is written in its place
	}
	if e := x.Record.Epoch; !req.AllowDataLoss && s.gone(e, silent) {
		return api.FailoverResult{}, deadPrimary(e.Leader)
	}
	to, err := failoverTarget(x, req.To, req.AllowDataLoss)
	if err != nil {
		return api.FailoverResult{}, s.orSilent(x, req.To, err)
	}
	if req.DryRun && req.AllowDataLoss { // no session moves, and the primary may be dead
		return api.FailoverResult{From: x.Record.Epoch.Leader, To: to, Epoch: x.Record.Epoch.Epoch, DryRun: true}, ableToLead(x, to)
	}
	if req.DryRun {
		return s.dryRun(ctx, x, to)
	}
	if x.Group.SignedOnly && s.PKI.CA() == nil {
		return api.FailoverResult{}, fail.Refusedf("a witness does not hold the authority's key, which signs the request; run this on a replica, such as %s: coterie failover --to %[1]s", to)
	}
	if req.AllowDataLoss {
		if err := ableToLead(x, to); err != nil {
			return api.FailoverResult{}, err
		}
	}
	op := ag.Op{Kind: ag.OpPlanned, To: to, Epoch: x.Record.Epoch.Epoch, Drain: req.Drain, Cut: req.Cut}
	if req.AllowDataLoss {
		op.Kind, op.Now = ag.OpForced, req.Now
		if err := s.suspendOthers(ctx, to); err != nil {
			return api.FailoverResult{}, err
		}
	}
	if op, err = s.askFor(ctx, x, op); err != nil {
		return api.FailoverResult{}, err
	}
	asked := request{start, x, op}
	if req.NoWait {
		s.watchLater(asked)
		return api.FailoverResult{From: x.Record.Epoch.Leader, To: to, Epoch: x.Record.Epoch.Epoch}, nil
	}
	return s.awaitRequest(ctx, asked)
}

// request is a failover that was asked for.
type request struct {
	began time.Time
	was   etcd.Snapshot // when it was asked for
	op    ag.Op
}

// awaitRequest returns when the failover has ended. A request that a change of the configuration has made void is made
// again.
func (s *Service) awaitRequest(ctx context.Context, q request) (api.FailoverResult, error) {
	for again := askAgain; ; again-- {
		r, err := s.awaitFailover(ctx, q.began, q.was, q.op)
		if !errors.Is(err, errStale) || again == 0 {
			return r, err
		}
		if q.op, err = s.askFor(ctx, q.was, q.op); err != nil {
			return api.FailoverResult{}, err
		}
	}
}

// maxUnwatched is how many requests wait for RunRequests. The record holds one at a time.
const maxUnwatched = 8

// watchLater has RunRequests say how a failover ends for which nobody waits.
func (s *Service) watchLater(q request) {
	select {
	case s.unwatched <- q:
	default:
		s.Logger.Warn("how a failover ends that was asked for is not noted: too many are", "to", q.op.To)
	}
}

// RunRequests sees to the failovers that were asked for here and that nobody waits for, until ctx is done. How they end
// is an event of this node: the members that carry them out forget those of an epoch that has ended.
func (s *Service) RunRequests(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case q := <-s.unwatched:
			s.watch(ctx, q)
		}
	}
}

func (s *Service) watch(ctx context.Context, q request) {
	r, err := s.awaitRequest(ctx, q)
	asked := fmt.Sprintf("the failover to %s that was asked for WITH NOWAIT", q.op.To)
	switch {
	case ctx.Err() != nil: // the agent ends
	case err != nil:
		s.Logger.Warn("a failover that was asked for has not taken place", "to", q.op.To, "err", err)
		s.Status.NoteFailover(q.op.Epoch, asked+" has not taken place", err.Error())
	default:
		s.Status.NoteFailover(r.Epoch, asked+" is done", fmt.Sprintf("%s is the primary in epoch %d after %v (was %s)", r.To, r.Epoch, r.Took.Round(time.Millisecond), r.From))
	}
}

// unanswered reports whether the member that has to carry out the request of this epoch does not answer: the primary,
// or the target of a forced failover. Without it nobody would end the request. In its place another may be forced: the
// store takes one of the two, and each is void once the epoch has changed.
func (s *Service) unanswered(x etcd.Snapshot) bool {
	var op ag.Op
	v := s.Agent.View()
	if x.Op == nil || v == nil || json.Unmarshal(x.Op, &op) != nil {
		return false
	}
	by := x.Record.Epoch.Leader
	if op.Kind == ag.OpForced {
		by = op.To
	}
	return by != s.Self && !slices.Contains(v.Reach, by)
}

// silent is how long a primary that does not answer must not have renewed its lease to be asked for nothing.
const silent = 1500 * time.Millisecond

// gone reports whether the primary of epoch e neither answers this node nor has renewed its lease for that long. One
// that only this node does not reach renews it.
func (s *Service) gone(e ag.EpochRecord, quiet time.Duration) bool {
	v := s.Agent.View()
	return v != nil && e.Phase == ag.PhaseLead && e.Leader != s.Self && v.Record.Epoch.Epoch == e.Epoch && !slices.Contains(v.Reach, e.Leader) && v.Silence >= quiet
}

// abandoned reports whether a planned failover has not begun and never will: the primary is gone, and nobody has taken
// over from it in the time that this takes where it happens by itself. Its lease has run out by then, so it comes back
// in a new epoch, in which the request is void.
func (s *Service) abandoned(e ag.EpochRecord, op ag.Op) bool {
	v := s.Agent.View()
	return v != nil && v.Profile.Observer > 0 && op.Kind == ag.OpPlanned && e.Epoch == op.Epoch && s.gone(e, 2*v.Profile.Observer)
}

// deadPrimary returns the refusal of a planned failover that nobody could carry out.
func deadPrimary(id ag.ReplicaID) error {
	return notNow(advice{"coterie status says what to run; coterie failover --to NAME --allow-data-loss accepts the loss of commits", "SELECT * FROM coterie.policies WHERE NOT ok; FORCE_FAILOVER_ALLOW_DATA_LOSS accepts the loss of commits"},
		"the primary %s does not answer, and a planned failover is carried out by the primary", id)
}

// ableToLead refuses to force a replica that says of itself that it has nothing to lead with. The others would be
// suspended for nothing, and one under quarantine would be resumed: its copy would lead although nobody has decided
// that it may. The replica refuses by itself what it cannot do by then (ag.View.Unforceable).
func ableToLead(x etcd.Snapshot, to ag.ReplicaID) error {
	var st agent.Status
	switch err := json.Unmarshal(x.Statuses[to], &st); {
	case err == nil && st.Quarantine != "":
		return refuse(41142, advice{"coterie replica resume " + string(to) + " --trust first, if this copy shall lead; or name another replica with --to", "coterie replica resume --trust on its node first, or force another replica"},
			"%s cannot become the primary: its copy is under quarantine: %s", to, st.Quarantine)
	case err != nil, st.Data == "", st.Data == ag.DataPresent:
		return nil
	}
	return refuse(41142, advice{"coterie replica seed NAME makes its copy whole, unless one is under way; or name another replica with --to", "SEED REPLICA makes its copy whole, unless one is under way; or force another replica"},
		"%s cannot become the primary: its data directory is %s", to, st.Data)
}

// askAgain is how often a failover is asked for again while other members write at the same moment.
const askAgain = 10

// errStale means that the configuration was changed while a request was made, and that it is not carried out.
var errStale = fail.Unhealthyf("the group's configuration changes all the time, and no failover can be asked for; see coterie status")

// askFor writes the request into the store, under a new name. The end of the failover before can clear its own request
// at the same moment, and the leader can write its epoch again: while nobody else has asked and the epoch is the same,
// the request is written again.
func (s *Service) askFor(ctx context.Context, x etcd.Snapshot, op ag.Op) (ag.Op, error) {
	op.ID = string(agent.NewCopyID())
	b, err := json.Marshal(op)
	if err != nil {
		return op, err
	}
	for again := askAgain; ; again-- {
		_, err = s.Store.PutOp(ctx, x.OpRev, x.Record.Revs.Epoch, b)
		if err == nil {
			s.Agent.Wake()
			return op, nil
		}
		if !errors.Is(err, etcd.ErrConflict) || again == 0 || retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return op, notAsked(err, op)
		}
		now, readErr := s.Store.Read(ctx)
		if readErr != nil || now.Record.Epoch.Epoch != op.Epoch || now.Op != nil && opEpoch(now.Op) == op.Epoch {
			return op, notAsked(errors.Join(err, readErr), op)
		}
		x = now
	}
}

// dryRunBudget bounds the questions to the primary and the target, which ask their servers for at most 5 s each.
const dryRunBudget = 12 * time.Second

// dryRun returns what a planned failover would do with the sessions of the primary and with the readers of the target.
func (s *Service) dryRun(ctx context.Context, x etcd.Snapshot, to ag.ReplicaID) (api.FailoverResult, error) {
	e := x.Record.Epoch
	r := api.FailoverResult{From: e.Leader, To: to, Epoch: e.Epoch, DryRun: true}
	ctx, cancel := context.WithTimeout(ctx, dryRunBudget)
	defer cancel()
	for _, id := range []ag.ReplicaID{e.Leader, to} { // sessions of the first move to the second, whose readers leave
		moves, err := s.movesOf(ctx, x, id)
		if err != nil {
			return r, fail.Unhealthyf("%s does not say what would become of its sessions: %w", id, err)
		}
		r.Sessions = append(r.Sessions, moves...)
	}
	return r, nil
}

// movesOf asks a replica which of the sessions of its server would move.
func (s *Service) movesOf(ctx context.Context, x etcd.Snapshot, id ag.ReplicaID) (moves []ag.SessionMove, err error) {
	if id == s.Self {
		moves = s.Clients.Moves(ctx)
	} else if m, known := x.Group.Replica(id); known {
		moves, err = rpc.Call(ctx, s.Calls, m, rpc.SessionMoves, rpc.Nothing{})
	}
	for i := range moves { // a node of an earlier version does not say which it is
		moves[i].Replica = id
	}
	return moves, err
}

// notAsked returns the error of a failover that could not be asked for. The replicas that a forced one has suspended
// stay so: another administrator, who asked at the same moment, may rely on it.
func notAsked(err error, op ag.Op) error {
	suspended := suspendedFor(op)
	if errors.Is(err, etcd.ErrConflict) {
		return fail.Unhealthyf("somebody else has asked for a failover, or one has happened, at this very moment; see coterie status%s", suspended)
	}
	return fmt.Errorf("ask for the failover: %w%s", err, suspended)
}

// suspendedFor returns what a forced failover that did not take place has left, for the end of its error.
func suspendedFor(op ag.Op) string {
	if op.Kind != ag.OpForced {
		return ""
	}
	return fmt.Sprintf("; every copy but %s was suspended for it: coterie replica resume NAME for each that shall go on", op.To)
}

func opEpoch(raw json.RawMessage) ag.Epoch {
	var op ag.Op
	_ = json.Unmarshal(raw, &op) // void when unreadable
	return op.Epoch
}

// suspendOthers keeps every other copy as it is after a forced failover, until a person has looked and resumes it.
func (s *Service) suspendOthers(ctx context.Context, to ag.ReplicaID) error {
	return s.Update(ctx, func(g *ag.Group) error {
		for i := range g.Replicas {
			if g.Replicas[i].HasData() {
				r := &g.Replicas[i]
				r.Suspended, r.SuspendedBy = r.ID != to || r.Join != "", ""
				if r.Suspended {
					r.SuspendedBy = ag.SuspendPartner
				}
			}
		}
		return nil
	})
}

// awaitFailover waits until the target leads, or the request was given up.
func (s *Service) awaitFailover(ctx context.Context, start time.Time, was etcd.Snapshot, op ag.Op) (api.FailoverResult, error) {
	budget := failoverBudget + op.Drain
	if op.Kind == ag.OpForced {
		budget = time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	for {
		x, err := s.Store.Read(ctx)
		e := x.Record.Epoch
		switch {
		case err == nil && x.OpStale && e.Epoch == op.Epoch:
			return api.FailoverResult{}, errStale
		case err == nil && waitsToOpen(x, op) && time.Since(start) < openWait:
			// it waits until the old leader can answer nobody any more; its progress says so
		case err == nil && e.Leader == op.To && e.Phase == ag.PhaseLead && e.Epoch > was.Record.Epoch.Epoch:
			return api.FailoverResult{From: was.Record.Epoch.Leader, To: op.To, Epoch: e.Epoch, Took: time.Since(start)}, nil
		case err == nil && e.Phase == ag.PhaseLead && (e.Epoch > was.Record.Epoch.Epoch || x.Op == nil):
			if err := s.givenUp(ctx, was.Record.Epoch, e, op); err != nil {
				return api.FailoverResult{}, err
			}
		case err == nil && s.abandoned(e, op):
			return api.FailoverResult{}, deadPrimary(e.Leader)
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			return api.FailoverResult{}, fail.Unhealthyf("the failover to %s has not ended after %v; see coterie status", op.To, budget)
		}
	}
}

// openWait is how long a forced failover is waited for to open.
const openWait = 45 * time.Second

// waitsToOpen reports whether the target of a forced failover leads and waits for an outgoing leader.
func waitsToOpen(x etcd.Snapshot, op ag.Op) bool {
	e := x.Record.Epoch
	if e.Leader != op.To || e.Phase != ag.PhaseLead || e.Outgoing.Leader == "" || e.Outgoing.Now {
		return false
	}
	var st agent.Status
	opened := json.Unmarshal(x.Statuses[op.To], &st) == nil && st.Open && st.Epoch == e.Epoch
	return op.Kind == ag.OpForced && !opened
}

// givenUp returns the reason why a failover did not take place, as the record is in epoch now. The member that was to
// carry it out publishes it: the primary, or the target of a forced one. The answer is nil if that has carried it out,
// and the next epoch will tell: a record that was read just before it is judged when the request is void.
func (s *Service) givenUp(ctx context.Context, was, now ag.EpochRecord, op ag.Op) error {
	primary, leader := was.Leader, now.Leader
	by, kind := primary, "planned"
	if op.Kind == ag.OpForced {
		by, kind = op.To, "forced"
	}
	for range 40 {
		x, err := s.Store.Read(ctx)
		var st agent.Status
		if err == nil && json.Unmarshal(x.Statuses[by], &st) == nil && st.HandOver != nil && st.HandOver.Op == op.ID {
			if st.HandOver.Error == "" && now.Epoch == was.Epoch {
				return nil
			}
			if st.HandOver.Error == "" {
				return fail.Unhealthyf("%s handed over to %s, which did not come to lead; %s leads now; coterie explain shows why", primary, op.To, leader)
			}
			text := fmt.Sprintf("%s failover to %s: %s%s", kind, op.To, st.HandOver.Error, suspendedFor(op))
			if st.HandOver.Refused {
				return fail.Error{Kind: fail.Refused, Err: errors.New(text)}
			}
			return fail.Error{Kind: fail.Unhealthy, Err: errors.New(text)}
		}
		_ = retry.Sleep(ctx, 50*time.Millisecond)
	}
	return fail.Unhealthyf("the failover to %s was given up and %s leads; coterie explain shows why", op.To, leader)
}
