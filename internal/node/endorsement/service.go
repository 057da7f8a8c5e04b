package endorsement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

const (
	turnEvery = time.Second // the pause between two turns of Run
	askEvery  = 5 * time.Second
	callTime  = 10 * time.Second // bounds a call to one member
	// restoreMost bounds the pause between two replacements of refused values, which doubles.
	restoreMost = time.Minute
	// readEvery is how long the agent takes at most from one read of the store to the next.
	readEvery = 10 * time.Second
	// recent is how long a refusal counts as a problem of the group after the value is gone.
	recent = time.Hour
)

// Config is what a Service needs of its node. No field may be nil.
type Config struct {
	Self    ag.ReplicaID
	Judge   *Judge
	Logger  *slog.Logger
	Members *membership.Members
	Calls   rpc.Caller

	Snapshot func() *agent.Snapshot // nil before the agent's first read of the record
	Update   func(ctx context.Context, change func(*ag.Group) error) error
	Restore  func(ctx context.Context, value, by []byte) error // as etcd.Store.RestoreGroup
	Record   Record
	Votes    func(ctx context.Context, id uint64, member ag.ReplicaID) (is bool, err error) // whether that is the member's voter in the embedded store
}

// Record is the part of *etcd.Store with which signatures of the record are replaced, and the record is restored.
type Record interface {
	SignRecordAgain(ctx context.Context) error
	RestoreRecord(ctx context.Context) (restored bool, err error)
}

// Service is a node's part in that the group uses signed configurations only, and that a refused value does not stay
// in the store. Any goroutine may call its methods.
type Service struct {
	Config
	waits atomic.Pointer[[]ag.ReplicaID] // the members whose programs are not known to sign

	// The fields below are used by Run's goroutine only.
	asked    time.Time
	restored time.Time     // when a refused value was last replaced
	pause    time.Duration // before the next is
	record   struct {
		tried time.Time     // when a refused record was last to be restored
		pause time.Duration // before it is tried again
	}
}

// New returns the service of a node.
func New(c Config) *Service { return &Service{Config: c} }

// Run does what the node has to do beside its own changes, until ctx is done.
func (s *Service) Run(ctx context.Context) error {
	logged := ""
	retry.Every(ctx, turnEvery, func() {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := errors.Join(s.restoreTurn(ctx), s.recordTurn(ctx), s.requireTurn(ctx)); err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			s.Logger.Warn("the signed configuration does not get on", "err", err)
		}
	})
	return nil
}

// restoreTurn replaces a refused value by the last good one, so that members which start find it. If two replicas have
// different ones, the later one stays: it is refused by none. While the authority is rotated, a member that has just
// joined may not know all who sign, so that nothing is replaced.
func (s *Service) restoreTurn(ctx context.Context) error {
	last, refused, _ := s.Judge.state()
	if !refused.stands || !last.SignedOnly || last.Rotation != nil || s.Judge.keys.CA() == nil || time.Since(s.restored) < s.pause {
		return nil
	}
	if time.Since(s.restored) > 2*restoreMost {
		s.pause = 0
	}
	s.restored, s.pause = time.Now(), min(max(2*s.pause, turnEvery), restoreMost)
	s.Logger.Warn("the refused configuration in the quorum's store is replaced by the last good one", "serial", last.Serial)
	if last.value == nil { // it is known from this node's directory only: it is signed anew
		return s.Update(ctx, func(*ag.Group) error { return nil })
	}
	return s.Restore(ctx, refused.value, last.value)
}

// recordTurn has the parts of the record signed by this node's authority, and restores one that is refused where that
// is safe. While the authority is rotated nothing is restored, as in restoreTurn.
func (s *Service) recordTurn(ctx context.Context) error {
	last, _, _ := s.Judge.state()
	if _, stale := s.Judge.recordState(); stale {
		if err := s.Record.SignRecordAgain(ctx); err != nil {
			return err
		}
	}
	r := &s.record
	refused, _ := s.Judge.refusedRecord()
	if refused.why == nil || !last.SignedRecord || last.Rotation != nil || s.Judge.keys.CA() == nil || time.Since(refused.at) > restoreMost || time.Since(r.tried) < r.pause {
		return nil
	}
	if time.Since(r.tried) > 2*restoreMost {
		r.pause = 0
	}
	r.tried, r.pause = time.Now(), min(max(2*r.pause, turnEvery), restoreMost)
	restored, err := s.Record.RestoreRecord(ctx)
	if restored {
		s.Logger.Warn("the refused record in the quorum's store is replaced by the last good one: nothing was written in between")
	}
	return err
}

// requireTurn has the primary ask every member whether its program signs: the configuration first, then the record.
// When all have said so, the configuration says that only signed ones are used.
func (s *Service) requireTurn(ctx context.Context) error {
	snap := s.Snapshot()
	if snap == nil || snap.Group.ID == "" || snap.Group.SignedRecord || snap.Group.Rotation != nil || s.Judge.keys.CA() == nil ||
		snap.Record.Epoch.Leader != s.Self || snap.Record.Epoch.Phase != ag.PhaseLead || time.Since(s.asked) < askEvery {
		return nil
	}
	s.asked = time.Now()
	if !snap.Group.SignedOnly {
		return s.require(ctx, snap.Group, rpc.Signs, func(g *ag.Group) { g.SignedOnly = true })
	}
	if signed, stale := s.Judge.recordState(); !signed || stale {
		return nil // it is signed in the next turn
	}
	return s.require(ctx, snap.Group, rpc.SignsRecord, func(g *ag.Group) { g.SignedRecord = true })
}

// require has every other member asked, and changes the configuration when all have said yes.
func (s *Service) require(ctx context.Context, group ag.Group, ask rpc.Method[rpc.Nothing, bool], change func(*ag.Group)) error {
	var others []ag.Replica
	for _, r := range group.Replicas {
		if r.ID != s.Self {
			others = append(others, r)
		}
	}
	signs, _ := rpc.Each(ctx, others, func(ctx context.Context, r ag.Replica) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		return rpc.Call(ctx, s.Calls, r, ask, rpc.Nothing{})
	})
	var waits []ag.ReplicaID
	for _, r := range others {
		if !signs[r.ID] {
			waits = append(waits, r.ID)
		}
	}
	s.waits.Store(&waits)
	if len(waits) > 0 {
		return nil
	}
	return s.Update(ctx, func(g *ag.Group) error {
		for _, r := range g.Replicas {
			if asked, ok := group.Replica(r.ID); !ok || asked.KeyPin != r.KeyPin {
				return fmt.Errorf("%s has joined meanwhile", r.ID)
			}
		}
		change(g)
		return nil
	})
}

// Signs answers another member's question whether this node's program signs the configuration or the record, or has a
// replica sign for it.
func (s *Service) Signs(context.Context, certs.Identity, rpc.Nothing) (bool, error) { return true, nil }

// Tell writes what this node tells of its own part in the group. A witness has a replica write it, unless members of an
// earlier version are left, which could not.
func (s *Service) Tell(ctx context.Context, step ag.MemberStep) error {
	last, _, _ := s.Judge.state()
	if step.Phase == ag.RotationIssue {
		// The report of the last member begins the phase in which the old authority is forgotten.
		if err := s.Record.SignRecordAgain(ctx); err != nil {
			return err
		}
	}
	if s.Judge.keys.CA() != nil || !last.SignedOnly {
		return s.Update(ctx, func(g *ag.Group) error { return step.Apply(g, s.Self) })
	}
	_, found, err := rpc.First(ctx, s.Members.Others(), callTime, func(ctx context.Context, r ag.Replica) (rpc.Nothing, error) {
		return rpc.Call(ctx, s.Calls, r, rpc.Tell, step)
	})
	if !found {
		return fmt.Errorf("no replica writes this witness's step into the configuration: %w", err)
	}
	return nil
}

// WriteFor writes what another member tells of itself. Nothing else of the configuration changes by it.
func (s *Service) WriteFor(ctx context.Context, peer certs.Identity, step ag.MemberStep) (none rpc.Nothing, err error) {
	if s.Judge.keys.CA() == nil {
		return none, fail.Refusedf("a witness does not sign the configuration: ask a replica")
	}
	if step.EtcdID != 0 {
		is, err := s.Votes(ctx, step.EtcdID, peer.ID)
		if err != nil {
			return none, err
		}
		if !is {
			return none, fail.Refusedf("%x is not the voting member of %s in the quorum, by its own list", step.EtcdID, peer.ID)
		}
	}
	return none, s.Update(ctx, func(g *ag.Group) error { return step.Apply(g, peer.ID) })
}

// Report returns what this node says of the signed configuration.
func (s *Service) Report() api.Configuration {
	last, refused, count := s.Judge.state()
	r := api.Configuration{Serial: last.Serial, SignedOnly: last.SignedOnly, SignedRecord: last.SignedRecord, Refused: count}
	if w := s.waits.Load(); w != nil && !last.SignedRecord {
		r.WaitsFor = slices.Clone(*w)
	}
	if refused.why != nil {
		r.Why, r.At, r.Stands = refused.why.Error(), &refused.at, refused.stands
	}
	return r
}

// Requests returns what this node says of refused requests of operators.
func (s *Service) Requests() api.Refusals { return told(s.Judge.refusedRequests()) }

// RefusedRecord returns what this node says of refused parts of the record.
func (s *Service) RefusedRecord() api.Refusals { return told(s.Judge.refusedRecord()) }

func told(refused refusal, count uint64) api.Refusals {
	r := api.Refusals{Refused: count}
	if refused.why != nil {
		r.Why, r.At = refused.why.Error(), &refused.at
	}
	return r
}

// Problem returns why the store may have been written by a thief; "": nothing speaks for it.
func (s *Service) Problem() string {
	_, refused, count := s.Judge.state()
	asked, _ := s.Judge.refusedRequests()
	record, _ := s.Judge.refusedRecord()
	switch {
	case record.why != nil && time.Since(record.at) > readEvery && time.Since(record.at) < recent: // until then nobody leads, for that reason
		return fmt.Sprintf("the record in the quorum's store was refused: %v", record.why)
	case (refused.why == nil || !refused.stands) && asked.why != nil && time.Since(asked.at) < recent && !errors.As(asked.why, new(configurationError)):
		return fmt.Sprintf("an operator's request in the quorum's store was refused: %v", asked.why)
	case refused.why == nil || !refused.stands && time.Since(refused.at) > recent:
		return ""
	case refused.stands:
		return fmt.Sprintf("the configuration in the quorum's store is refused, and the last good one is used: %v", refused.why)
	}
	return fmt.Sprintf("a configuration in the quorum's store was refused and replaced (%d since the agent started): %v", count, refused.why)
}
