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

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// notHere returns the refusal of a witness, which has no key of the group's authority: it can neither admit members nor
// sign the configuration. It names the replicas on which the command can be run.
func (s *Service) notHere(command string, about ag.ReplicaID) error {
	return fail.Refusedf("%s is a witness, which cannot change who is a member; nothing was changed. Run %s on %s", s.Self, command, s.others(about))
}

// others names the replicas beside this node and one that a command is about: where the command can be run instead.
// Those that do not answer this node are left out, if any does.
func (s *Service) others(about ag.ReplicaID) string {
	var answer, silent []string
	v := s.Agent.View()
	for _, r := range s.Members.Group().Replicas {
		switch {
		case !r.HasData() || r.ID == s.Self || r.ID == about:
		case v != nil && slices.Contains(v.Reach, r.ID):
			answer = append(answer, string(r.ID))
		default:
			silent = append(silent, string(r.ID))
		}
	}
	switch {
	case len(answer) > 0:
		return strings.Join(answer, " or ")
	case len(silent) > 0:
		return strings.Join(silent, " or ") + ", which does not answer this node"
	}
	return "another replica; the group has none"
}

// Replace takes a member that is lost out of the group, keeps its name and its settings, and makes a token for the node
// that takes its place. A member that answers is refused: it may be worth more than its replacement. The member is
// awaited from the moment in which it is not listed any more, so an interrupted Replace can be repeated.
func (s *Service) Replace(ctx context.Context, req api.ReplaceRequest) (out api.TokenResult, err error) {
	defer func() { err = s.noQuorum(err) }()
	if err := checkTokenLife(req.TTL); err != nil { // before the member is taken out
		return out, err
	}
	x, err := s.Store.Read(ctx)
	if err != nil {
		return out, err
	}
	r, listed := x.Group.Replica(req.Member)
	was, awaited := x.Group.Awaiting(req.Member)
	switch {
	case !listed && !awaited:
		return out, fail.Numberedf(41167, "the group has no member %s", req.Member).WithHint("see coterie member list")
	case s.PKI.CA() == nil:
		return out, s.notHere("coterie member replace "+string(req.Member), req.Member)
	case listed && s.answers(ctx, r):
		return out, fail.Refusedf("%s answers, and only a member that is lost is replaced; nothing was changed. If its machine is to go: coterie leave there, or stop its agent (systemctl stop coterie) and run this again", r.ID)
	case listed:
		if err := s.remove(ctx, r.ID, removal{await: true}); err != nil {
			return out, err
		}
		was = r
		fault.Point("replace.removed") // the member is out and awaited; no token for its successor is made
	default: // an earlier request may have ended before it came to that
		if _, err := s.takeStrays(ctx, x.Group); err != nil {
			return out, err
		}
	}
	role := certs.KindReplica
	if !was.HasData() {
		role = certs.KindWitness
	}
	return s.token(ctx, api.TokenRequest{Role: role, TTL: req.TTL}, req.Member, func(t etcd.Token) bool {
		var stored endpoint.StoredToken // those of an earlier replacement of that name end as this one begins
		return s.endorsed(t) && (awaited || json.Unmarshal(t.Value, &stored) == nil && stored.Member != string(req.Member))
	})
}

// answerLimit bounds the wait for a sign of life of a member that is to be replaced.
const answerLimit = 2 * time.Second

// answers reports whether a member lives and reaches this node.
func (s *Service) answers(ctx context.Context, r ag.Replica) bool {
	if r.ID == s.Self {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := rpc.Call(ctx, s.Calls, r, rpc.Ping, rpc.Nothing{})
	return err == nil
}

// Remove takes a member out in an order that is safe at every step. It is dropped from V, then its vote is taken, then
// its place in the configuration. The last revokes its certificate and lets its slot be dropped. A member that votes
// only once it is gone gets its vote before.
//
// Of a member that was taken out to be replaced, only its name is left; it is forgotten.
func (s *Service) Remove(ctx context.Context, id ag.ReplicaID) (err error) {
	defer func() { err = s.noQuorum(err) }()
	return s.remove(ctx, id, removal{})
}

// removal is how a member is removed.
type removal struct {
	await  bool // the configuration keeps its name and its settings for its successor
	leaves bool // it asks for that itself: not if no other synchronized secondary would be left
}

// remove is Remove.
func (s *Service) remove(ctx context.Context, id ag.ReplicaID, how removal) error {
	x, err := s.Store.Read(ctx)
	if err != nil {
		return err
	}
	r, listed := x.Group.Replica(id)
	_, awaited := x.Group.Awaiting(id)
	switch {
	case !listed && !awaited:
		taken, err := s.takeStrays(ctx, x.Group)
		if err != nil || slices.Contains(taken, string(id)) || slices.Contains(taken, "") { // an earlier removal ended before it came to that
			return err
		}
		return fail.Numberedf(41167, "the group has no member %s", id).WithHint("see coterie member list")
	case x.Record.Epoch.Leader == id:
		return fail.Refusedf("%s is the primary; coterie failover first", id)
	case id == s.Self: // its own vote would end in the middle, and with it the rest of the work
		return fail.Refusedf("%s cannot take itself out of the group; nothing was changed. Run coterie member remove %[1]s on %s; or, here, coterie leave, which has another member do it and keeps the data", id, s.others(id))
	case s.PKI.CA() == nil && x.Group.SignedOnly:
		return s.notHere("coterie member remove "+string(id), id)
	case !listed && how.await: // another request to replace it has come this far
		return nil
	case !listed:
		_, err := s.takeStrays(ctx, x.Group)
		return errors.Join(err, s.Update(ctx, func(g *ag.Group) error { g.Forget(id); return nil }))
	}
	if err := keepsRequired(x.Group, x.Record.Epoch.Leader, id); err != nil {
		return err
	}
	again := map[bool]string{false: "coterie member remove ", true: "coterie member replace "}[how.await] + string(id)
	if err := s.handVoteOn(ctx, x, r); err != nil {
		return err
	}
	if err := s.suspendToRemove(ctx, x.Record, id, how); err != nil {
		return err
	}
	fault.Point("remove.suspended") // the member is suspended; the primary still counts it
	if _, err := s.awaitDropped(ctx, id); err != nil {
		return err
	}
	fault.Point("remove.dropped") // nobody counts the member; it has its vote
	if r.EtcdID != 0 {
		if err := afterElection(ctx, func() error { return s.Store.RemoveMember(ctx, r.EtcdID) }); err != nil {
			return s.unfinished(fmt.Errorf("take the vote of %s: %w", id, err), again, string(id)+" is suspended, and its vote may be taken")
		}
	}
	fault.Point("remove.unvoted") // the member has no vote; the configuration lists it
	var unvote []ag.Replica
	if err := afterElection(ctx, func() (err error) { unvote, err = s.unlist(ctx, id, how.await); return err }); err != nil {
		return s.unfinished(err, again, "the vote of "+string(id)+" is taken, and the configuration still lists it")
	}
	fault.Point("remove.unlisted") // the configuration does not list the member; votes are still to be taken from others
	for _, r := range unvote {
		if err := afterElection(ctx, func() error { return s.Store.RemoveMember(ctx, r.EtcdID) }); err != nil {
			return fmt.Errorf("an even number of votes is no use, but %s keeps its own: %w", r.ID, err)
		}
	}
	if err := afterElection(ctx, func() error { _, err := s.takeStrays(ctx, x.Group); return err }); err != nil {
		return s.unfinished(err, again, string(id)+" is no member of the group any more, and what it left in the quorum may still be there")
	}
	fault.Point("remove.settled")           // the votes are as they should be; the member's status is still there
	if err := s.tidy(ctx, id); err != nil { // nobody reads the status of one that is not a member
		s.Logger.Warn("the status of a removed member is left behind", "member", id, "err", err)
	}
	return nil
}

// suspendToRemove takes a member out of commits, unless it is needed there now.
func (s *Service) suspendToRemove(ctx context.Context, r ag.Record, id ag.ReplicaID, how removal) error {
	return s.Update(ctx, func(g *ag.Group) error {
		if how.leaves {
			if err := keepsCopy(*g, r, id); err != nil {
				return err
			}
		}
		if err := keepsRequired(*g, r.Epoch.Leader, id); err != nil {
			return err
		}
		return setSuspended(g, id, ag.SuspendRemoval)
	})
}

// keepsRequired refuses the removal of a secondary without which too few are left for a REQUIRED that was set.
func keepsRequired(g ag.Group, primary, id ag.ReplicaID) error {
	g.Replicas = slices.DeleteFunc(slices.Clone(g.Replicas), func(r ag.Replica) bool { return r.ID == id })
	n := g.TakePart(primary)
	if g.Required == nil || *g.Required <= n {
		return nil
	}
	return fail.Refusedf("without %s the group has %d of the %d secondaries that REQUIRED_SYNCHRONIZED_SECONDARIES_TO_COMMIT asks for, so it stays. "+
		"Let another replica join first; or accept that commits wait for fewer: coterie group set required_synchronized_secondaries_to_commit=%[2]d", id, n, *g.Required)
}

// keepsCopy refuses that a synchronized secondary leaves while the others are suspended, or are not counted: of two
// that leave at the same moment each has seen the other one synchronized. The only secondary may leave: its command
// asks.
func keepsCopy(g ag.Group, r ag.Record, id ag.ReplicaID) error {
	if _, counted := r.State.InV(id); !counted {
		return nil
	}
	var others []string
	for _, o := range g.Replicas {
		if o.ID == id || o.ID == r.Epoch.Leader || o.AvailabilityMode != ag.SynchronousCommit {
			continue
		}
		if _, counted := r.State.InV(o.ID); counted && !o.Suspended {
			return nil
		}
		others = append(others, string(o.ID))
	}
	if len(others) == 0 {
		return nil
	}
	return fail.Refusedf("%s has the only synchronized copy beside that of the primary %s: %s is not synchronized, or is being removed itself; nothing was changed: see coterie status", id, r.Epoch.Leader, strings.Join(others, ", "))
}

// tidy deletes what is in the store in the names of others than the members, after one was removed. That may have been
// the witness of a thief, who has filled the store so that nobody finds what members write.
func (s *Service) tidy(ctx context.Context, removed ag.ReplicaID) error {
	x, err := s.Store.Read(ctx)
	if err != nil {
		return err
	}
	var members []ag.ReplicaID
	for _, r := range x.Group.Replicas {
		if r.ID != removed {
			members = append(members, r.ID)
		}
	}
	return s.Store.DeleteStrays(ctx, members)
}

// takeStrays removes from an embedded quorum the members that are no member's of the group, and returns their names,
// which are empty for those that have never started. A node that is lost between becoming one and the configuration's
// saying so leaves such a member behind: as a voter it counts for the majority for ever, and as a learner it keeps
// every other node from becoming a voter.
func (s *Service) takeStrays(ctx context.Context, g ag.Group) (taken []string, err error) {
	if g.External > 0 {
		return nil, nil
	}
	members, err := s.Store.Members(ctx) // before the configuration, which lists a node before the node asks for a vote
	if err != nil {
		return nil, err
	}
	x, err := s.Store.Read(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if slices.ContainsFunc(x.Group.Replicas, func(r ag.Replica) bool { return isMemberOf(m, r) }) {
			continue
		}
		if err := s.Store.RemoveMember(ctx, m.ID); err != nil {
			return taken, fmt.Errorf("the quorum keeps the member %s, which is no member's of the group: %w", cmp.Or(m.Name, fmt.Sprintf("%x", m.ID)), err)
		}
		s.Logger.Info("a member of the quorum that is no member's of the group is removed", "name", m.Name, "member", fmt.Sprintf("%x", m.ID))
		taken = append(taken, m.Name)
	}
	return taken, nil
}

// isMemberOf reports whether a member of the quorum is, or may come to be, that of a member of the group. While the
// configuration does not say which one is, the name tells, and the address before the member has started once.
func isMemberOf(m etcd.MemberInfo, r ag.Replica) bool {
	if r.EtcdID != 0 {
		return m.ID == r.EtcdID
	}
	return m.Name == string(r.ID) || m.Name == "" && slices.Contains(m.PeerURLs, "https://"+r.Endpoint)
}

// The bounds of the wait until a member votes that gets the vote of another, which is to be removed. A spare member is
// not waited for as long: the removal goes on without it.
const (
	voteLimit  = 30 * time.Second
	spareLimit = 20 * time.Second
)

// handVoteOn has a member get its vote BEFORE the vote of r is taken. It is the primary, if r is the only voter of an
// embedded quorum: nobody could take that vote, and the member would be suspended for ever. Otherwise it is the member
// that has a vote only once r is gone: with one vote less in between, the quorum would survive one failure less, and
// the primary may die then. A vote beside that of a member that is down already would only raise the majority.
func (s *Service) handVoteOn(ctx context.Context, x etcd.Snapshot, r ag.Replica) error {
	if x.Group.External > 0 || !x.Group.Votes(r) {
		return nil
	}
	if x.Group.Voting() > 1 {
		heir, ok := x.Group.VotesAfter(r.ID)
		if !ok || !s.answers(ctx, r) || !s.answers(ctx, heir) {
			return nil
		}
		if err := s.giveVote(ctx, r, heir.ID, spareLimit); err != nil {
			s.Logger.Warn("a member is removed before a spare one votes in its place", "member", r.ID, "spare", heir.ID, "err", err)
		}
		return nil
	}
	heir := x.Record.Epoch.Leader
	if _, ok := x.Group.Replica(heir); !ok {
		return fail.Unhealthyf("%s has the only vote of the quorum, and there is no primary that could vote in its place; nothing was changed: see coterie status", r.ID)
	}
	if err := s.giveVote(ctx, r, heir, voteLimit); err != nil {
		return fail.Unhealthyf("%s has the only vote of the quorum, and %s has not come to vote beside it within %v, so it was not removed; see coterie status, then coterie member remove %[1]s again", r.ID, heir, voteLimit)
	}
	return nil
}

// giveVote gives a vote to heir, beside that of the member r which is to be removed, and waits until it votes.
func (s *Service) giveVote(ctx context.Context, r ag.Replica, heir ag.ReplicaID, limit time.Duration) error {
	err := s.Update(ctx, func(g *ag.Group) error {
		i := slices.IndexFunc(g.Replicas, func(o ag.Replica) bool { return o.ID == heir })
		if i < 0 {
			return fail.Unhealthyf("%s is no member of the group any more, and %s was not removed; see coterie status", heir, r.ID)
		}
		g.Replicas[i].Voter = true
		return nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return retry.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		now, err := s.Store.Read(ctx)
		if err != nil {
			return false, nil //nolint:nilerr // the quorum may need a moment with the new vote
		}
		h, there := now.Group.Replica(heir)
		return there && now.Group.Votes(h), nil
	})
}

// leaveLimit bounds how long one member may take to remove this node, and dismissLimit the removal itself there: the
// wait until the primary has dropped the member, and what follows.
const (
	leaveLimit   = time.Minute
	dismissLimit = 55 * time.Second
)

// Leave has another replica remove this node from the group, the primary before others. A node that is no member any
// more has left. The answer of the other replica is often lost, because the removal ends its connection: after an
// error the node may have been removed all the same, which its status says (Removed of package availability). It can
// be repeated.
func (s *Service) Leave(ctx context.Context) (err error) {
	defer func() { err = s.noQuorum(err) }()
	x, err := s.Store.Read(ctx)
	if err != nil {
		return err
	}
	leader := x.Record.Epoch.Leader
	if _, in := x.Group.Replica(s.Self); !in {
		return nil
	}
	if leader == s.Self {
		return fail.Refusedf("%s is the primary; coterie failover first", s.Self)
	}
	others := slices.DeleteFunc(slices.Clone(x.Group.Replicas), func(r ag.Replica) bool { return r.ID == s.Self || !r.HasData() })
	slices.SortStableFunc(others, func(a, b ag.Replica) int {
		switch leader {
		case a.ID:
			return -1
		case b.ID:
			return 1
		}
		return 0
	})
	var failed []error
	for _, r := range others {
		ctx, cancel := context.WithTimeout(ctx, leaveLimit)
		_, err := rpc.Call(ctx, s.Calls, r, rpc.Leave, rpc.Nothing{})
		cancel()
		var decided fail.Error
		if err == nil || errors.As(err, &decided) {
			return err
		}
		failed = append(failed, fmt.Errorf("ask %s: %w", r.ID, err))
	}
	if len(failed) == 0 {
		return fail.Refusedf("no other replica could take %s out of the group", s.Self)
	}
	return errors.Join(failed...)
}

// Dismiss removes the member that asks for it by Leave. It goes on when that member's connection ends, as it does
// during the removal. A member that has been removed meanwhile has what it asked for: it asks the next replica when the
// answer of the one before is lost.
func (s *Service) Dismiss(ctx context.Context, id ag.ReplicaID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dismissLimit)
	defer cancel()
	err := s.noQuorum(s.remove(ctx, id, removal{leaves: true}))
	if err == nil {
		return nil
	}
	if x, unread := s.Store.Read(ctx); unread == nil {
		if _, in := x.Group.Replica(id); !in {
			return nil
		}
	}
	return err
}

// dropLimit bounds the wait until the primary has dropped a member that is to be removed, which takes it a turn. The
// command waits a minute for the answer.
const dropLimit = 45 * time.Second

// stillSuspended refuses to go on with the removal of a member that somebody has resumed, or has forced a failover to,
// since it was suspended: commits may count on it again.
func stillSuspended(g ag.Group, id ag.ReplicaID) error {
	if r, ok := g.Replica(id); ok && !r.Suspended {
		return fail.Unhealthyf("%s was resumed, or a failover to it was forced, while it was removed; see coterie status, then coterie member remove %s again", id, id)
	}
	return nil
}

// awaitDropped returns once the record does without a suspended member, and what was read then: another member leads,
// so this one did not lead last either, and no commit counts it.
func (s *Service) awaitDropped(ctx context.Context, id ag.ReplicaID) (etcd.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, dropLimit)
	defer cancel()
	for {
		x, err := s.Store.Read(ctx)
		if err != nil {
			return x, err
		}
		if err := stillSuspended(x.Group, id); err != nil {
			return x, err
		}
		if x.Record.Epoch.Leader == id {
			return x, fail.Refusedf("%s has become the primary meanwhile, so it was not removed; it is suspended now: coterie failover first, or coterie replica resume %s", id, id)
		}
		if _, in := x.Record.State.InV(id); !in && x.Record.Epoch.Phase == ag.PhaseLead {
			return x, nil
		}
		if retry.Sleep(ctx, 50*time.Millisecond) != nil {
			return x, fail.Unhealthyf("no primary has dropped %s from the synchronized set within %v, so it was not removed; it is suspended now. See coterie status, "+
				"then coterie member remove %s again, or coterie replica resume %s", id, dropLimit, id, id)
		}
	}
}

// unlist takes a member out of the configuration and assigns the votes anew. It returns the members whose votes are to
// be taken then. The change is bound to the epoch in which the record does without the member. A primary that changes
// the record compares the configuration, so that none counts the member again.
func (s *Service) unlist(ctx context.Context, id ag.ReplicaID, await bool) (unvote []ag.Replica, err error) {
	for {
		x, err := s.awaitDropped(ctx, id)
		if err != nil {
			return nil, err
		}
		g := &x.Group
		if await {
			g.Await(id)
		} else {
			g.Replicas = slices.DeleteFunc(g.Replicas, func(r ag.Replica) bool { return r.ID == id })
		}
		g.AssignVotes()
		unvote = nil
		for i := range g.Replicas {
			if !g.Replicas[i].Voter && g.Replicas[i].EtcdID != 0 {
				unvote = append(unvote, g.Replicas[i])
				g.Replicas[i].EtcdID = 0
			}
		}
		_, err = s.Store.UpdateGroupIn(ctx, x.GroupRev, x.Record.Revs.Epoch, x.Group)
		if !errors.Is(err, etcd.ErrConflict) {
			return unvote, err
		}
	}
}
