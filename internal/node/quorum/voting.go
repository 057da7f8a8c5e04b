package quorum

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// turnEvery is the pause between two turns of Run.
const turnEvery = 500 * time.Millisecond

// Run keeps this node's part in the quorum as the group's configuration wants it, until ctx is done: the node joins as
// a learner and becomes a voter, or leaves.
func (s *Service) Run(ctx context.Context) error {
	var lister sync.WaitGroup
	defer lister.Wait()
	lister.Go(func() { retry.Every(ctx, rosterEvery, func() { s.rosterTurn(ctx) }) })
	logged := ""
	retry.Every(ctx, turnEvery, func() {
		err := s.membershipTurn(ctx)
		if ctx.Err() != nil {
			return
		}
		s.noteWait(err)
		if err != nil && err.Error() != logged {
			logged = err.Error()
			s.Logger.Warn("quorum membership not settled yet", "err", err)
		}
	})
	return nil
}

// noteWait has the status say why this node, which is to vote, has not come to it for a while. err is that of the last
// turn.
func (s *Service) noteWait(err error) {
	snap := s.Snapshot()
	if err != nil && snap != nil {
		if self, ok := snap.Group.Replica(s.self); ok && self.Voter && self.EtcdID == 0 {
			if s.waits.IsZero() {
				s.waits = s.now()
			}
			if s.now().Sub(s.waits) >= rosterPatience {
				text := err.Error()
				s.waiting.Store(&text)
			}
			return
		}
	}
	s.waits = time.Time{}
	s.waiting.Store(nil)
}

// membershipTurn takes one step towards the part in the quorum that the configuration wants.
func (s *Service) membershipTurn(ctx context.Context) error {
	snap := s.Snapshot()
	if snap == nil {
		return nil
	}
	self, ok := snap.Group.Replica(s.self)
	m := s.running()
	if ok && s.comesBack() {
		if err := s.Tell(ctx, ag.MemberStep{CameBack: true}); err != nil {
			return err
		}
		return durable.Remove(s.Layout.ComebackFile())
	}
	if s.external() {
		return s.countExternal(ctx, snap)
	}
	if done, err := s.supervise(ctx, ok && self.EtcdID != 0); done {
		return err
	}
	if errors.Is(s.failed, embedded.ErrCorrupt) {
		return s.replaceMember(ctx, snap, self)
	}
	switch {
	case ok && self.Voter && self.EtcdID == 0 && m != nil && errors.Is(m.Err(), embedded.ErrRemoved):
		return s.stopVoting(m) // its vote was taken while it was away, and given to it again: it needs a member with another id
	case ok && self.Voter && !self.Suspended && self.HasData() && m != nil && self.EtcdID == m.ID() && errors.Is(m.Err(), embedded.ErrRemoved):
		return s.voteTaken(ctx, m.ID())
	case ok && self.Voter && (m == nil || self.EtcdID == 0):
		if before := waitsFor(snap.Group, s.self); before != "" {
			return fmt.Errorf("%s is to vote first; start it, or take it out with coterie member remove %s", before, before)
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err := s.becomeVoter(ctx)
		if errors.Is(err, embedded.ErrFailed) {
			s.memberFailed(err)
		}
		return err
	case (!ok || !self.Voter) && m != nil && len(snap.Group.Replicas) > 0:
		if ok { // of a node that is no member of the group any more the vote was taken first
			if err := s.giveBackVote(ctx, m); err != nil {
				return err
			}
		}
		return s.stopVoting(m)
	}
	return nil
}

// comesBack reports whether the quorum was founded anew without this node's member, by coterie recover.
func (s *Service) comesBack() bool {
	_, err := os.Stat(s.Layout.ComebackFile())
	return err == nil
}

// mayVote returns the members that vote, as far as this node knows. One that comes back knows the configuration of the
// lost quorum, or of one that it was to found itself: the founder of the new one need not vote in it. So it asks all.
func (s *Service) mayVote() []ag.Replica {
	if g := s.Members.Group(); g != nil && s.comesBack() {
		return g.Replicas
	}
	return s.Members.Voters()
}

// waitsFor returns the member that is to become a voter before this one; "": none. Members become voters one at a time,
// in the order of the configuration. The quorum accepts one learner at a time, and a rejected second learner stays in
// its members' connections for ever.
func waitsFor(g ag.Group, self ag.ReplicaID) ag.ReplicaID {
	for _, r := range g.Replicas {
		if r.ID == self {
			return ""
		}
		if r.Voter && r.EtcdID == 0 {
			return r.ID
		}
	}
	return ""
}

// becomeVoter adds this node to the quorum as a learner, starts its member, and promotes it once it has caught up.
// Every step can be repeated: a member that runs is known to the quorum, as a learner or as a voter by now.
func (s *Service) becomeVoter(ctx context.Context) error {
	var id uint64
	if m := s.running(); m != nil {
		id = m.ID()
	} else {
		added, initial, err := s.calls.AddLearner(ctx, "https://"+s.Node.Endpoint.Advertise)
		if err != nil {
			return err
		}
		id = added
		fault.Point("vote.learner") // the quorum knows this node as a learner; no member runs here
		if err := s.launch(ctx, embedded.Config{Token: s.Node.Group, Initial: initial}); err != nil {
			return err
		}
	}
	fault.Point("vote.launched") // the member runs as a learner; it has no vote
	if err := s.calls.PromoteLearner(ctx, id); err != nil {
		return err
	}
	fault.Point("vote.promoted") // the member votes; the configuration does not say so
	s.Logger.Info("this node votes in the quorum now", "member", fmt.Sprintf("%x", id))
	return s.Tell(ctx, ag.MemberStep{EtcdID: id})
}

// voteTaken has the configuration count the vote of this node's member no more, which the quorum has removed for ever.
// A removal that was given up after that, and whose replica was resumed, leaves it so. The node then begins with
// another member.
func (s *Service) voteTaken(ctx context.Context, id uint64) error {
	s.Logger.Warn("the quorum has removed this node's member, and the configuration counts its vote: it begins with another one", "member", fmt.Sprintf("%x", id))
	return s.UpdateGroup(ctx, func(g *ag.Group) error {
		for i := range g.Replicas {
			if r := &g.Replicas[i]; r.ID == s.self && r.EtcdID == id && !r.Suspended {
				r.EtcdID = 0
			}
		}
		return nil
	})
}

// replaceMember begins with another member after the files of this node's are damaged. The quorum removes the old one
// first: it has lost what it promised by its votes. A node without other voters has nobody who could do that, and a
// witness cannot write the configuration.
func (s *Service) replaceMember(ctx context.Context, snap *agent.Snapshot, self ag.Replica) error {
	v := s.View()
	if !self.Voter || self.Suspended || !self.HasData() || v == nil || !v.Quorum {
		return nil
	}
	if self.EtcdID != 0 {
		if snap.Group.Voting() < 2 {
			return nil
		}
		if err := s.takeVote(ctx, self.EtcdID); err != nil {
			return fmt.Errorf("take the vote of the member whose files are damaged: %w", err)
		}
		fault.Point("vote.replaced") // the quorum has removed the damaged member; the configuration counts its vote
		return s.voteTaken(ctx, self.EtcdID)
	}
	fault.Point("vote.uncounted") // nobody counts the damaged member; its files are there
	if err := s.dropMember(); err != nil {
		return err
	}
	s.Logger.Warn("the damaged files of this node's quorum member are removed", "because", s.failed)
	s.failed = nil
	s.missing.Store(nil)
	return nil
}

// giveBackVote has the quorum count this node's member no more. The member MUST run until then: without it the others
// may be no majority, and could never take its vote.
func (s *Service) giveBackVote(ctx context.Context, m member) error {
	if err := s.takeVote(ctx, m.ID()); err != nil {
		return fmt.Errorf("give this node's vote back: %w", err)
	}
	return nil
}

// takeVote has the quorum remove a member of this node.
func (s *Service) takeVote(ctx context.Context, id uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.calls.RemoveMember(ctx, id)
}

// stopVoting closes a member that the group has removed, and deletes its log, which must never be used again.
func (s *Service) stopVoting(m member) error {
	s.member.Store(nil)
	s.store.Refresh()
	err := m.Close()
	s.Logger.Info("this node does not vote in the quorum any more")
	return errors.Join(err, s.dropMember())
}

// dropMember deletes the log of a member that the quorum has removed. The mark goes first: a node that has it, and no
// log, does not start (embedded.ErrLost).
func (s *Service) dropMember() error {
	if err := durable.Remove(s.Layout.MemberMark()); err != nil {
		return err
	}
	fault.Point("vote.unmarked") // no mark says that this node had a member; the files of the member are there
	left, err := os.ReadDir(s.Layout.Etcd())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range left { // the directory itself may be a file system of its own
		if err := os.RemoveAll(filepath.Join(s.Layout.Etcd(), e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(s.Layout.Etcd()); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EBUSY) {
		return err
	}
	return nil
}
