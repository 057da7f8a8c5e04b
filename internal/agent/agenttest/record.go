package agenttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Record is a group's record in memory, shared by the stores made from it.
type Record struct {
	mu     sync.Mutex // guards the fields below
	rev    int64
	snap   agent.Snapshot
	stores []*Store
	past   []ag.Record
	forged bool    // see Forge
	fork   *Record // see Fork
}

// NewRecord returns a record that holds rec and the group.
func NewRecord(g ag.Group, rec ag.Record) *Record {
	r := &Record{rev: 4}
	rec.Revs = ag.Revisions{Epoch: 1, State: 2, Lead: 3}
	r.snap = agent.Snapshot{Record: rec, Group: g, GroupRev: r.rev, Statuses: map[ag.ReplicaID]agent.Status{}}
	return r
}

// Store returns one member's access to the record.
func (r *Record) Store(id ag.ReplicaID) *Store {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &Store{id: id, hints: make(chan agent.Hint, 1)}
	s.shared.Store(r)
	r.stores = append(r.stores, s)
	return s
}

// Snapshot returns the record's contents.
func (r *Record) Snapshot() agent.Snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.snap
	s.Statuses = maps.Clone(s.Statuses)
	s.Record.State = s.Record.State.Clone()
	return s
}

// Fork has the stores of these members hold a copy of the record from now on, which changes on its own. So a stolen
// witness, which breaks the rules of the quorum's log, can have each of its majorities know nothing of the other.
func (r *Record) Fork(ids ...ag.ReplicaID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	other := &Record{rev: r.rev, snap: r.snap}
	other.snap.Statuses = maps.Clone(r.snap.Statuses)
	for _, s := range r.stores {
		if slices.Contains(ids, s.id) {
			s.shared.Store(other)
			other.stores = append(other.stores, s)
		}
	}
	r.stores = slices.DeleteFunc(r.stores, func(s *Store) bool { return slices.Contains(ids, s.id) })
	r.fork = other
}

// Forked returns the record that Fork made.
func (r *Record) Forked() *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fork
}

// Mislead has the store of one more member hold the record that Fork made.
func (r *Record) Mislead(id ag.ReplicaID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fork.mu.Lock()
	defer r.fork.mu.Unlock()
	i := slices.IndexFunc(r.stores, func(s *Store) bool { return s.id == id })
	r.stores[i].shared.Store(r.fork)
	r.fork.stores = append(r.fork.stores, r.stores[i])
	r.stores = slices.Delete(r.stores, i, i+1)
	r.fork.changed()
}

// Name gives the store that Fork left its own identity, and the one that it made another. So they are two that were
// founded beside each other.
func (r *Record) Name(left, made uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snap.StoreID = left
	r.fork.mu.Lock()
	defer r.fork.mu.Unlock()
	r.fork.snap.StoreID = made
}

// Rejoin ends what Fork began: every store holds this record again.
func (r *Record) Rejoin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.fork.stores {
		s.shared.Store(r)
		r.stores = append(r.stores, s)
	}
	r.changed()
}

// Past returns all former records, oldest first, without the renewals of /lead.
func (r *Record) Past() []ag.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]ag.Record{}, r.past...)
}

// Restore puts an earlier record in place of the present one, as a restored backup of the store does.
func (r *Record) Restore(old ag.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rev++
	old.Revs = ag.Revisions{Epoch: r.rev, State: r.rev, Lead: r.rev}
	r.snap.Record = old
	r.snap.Record.State = old.State.Clone()
	r.changed()
}

// SetGroup replaces the configuration.
func (r *Record) SetGroup(change func(*ag.Group)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.snap.Group.Replicas = slices.Clone(r.snap.Group.Replicas) // agents read those of before
	change(&r.snap.Group)
	r.rev++
	r.snap.GroupRev = r.rev
	r.changed()
}

// SetOp stores an operator's request and returns its revision.
func (r *Record) SetOp(op ag.Op) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rev++
	r.snap.Op, r.snap.OpRev = op, r.rev
	r.changed()
	return r.rev
}

func (r *Record) changed() {
	r.hint(agent.Hint{Changed: true})
}

// hint adds to the hints that each store has not taken yet.
func (r *Record) hint(h agent.Hint) {
	for _, s := range r.stores {
		s.mu.Lock()
		deaf := s.deaf
		s.mu.Unlock()
		if deaf {
			continue
		}
		x := h
		select {
		case old := <-s.hints:
			x.Changed = x.Changed || old.Changed
			if x.LeadRev == 0 {
				x.Lead, x.LeadRev = old.Lead, old.LeadRev
			}
		default:
		}
		s.hints <- x
	}
}

func (r *Record) commit(c ag.Commit) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &r.snap.Record
	differ := func(guard, have int64) bool { return guard >= 0 && guard != have }
	if differ(c.Guard.Epoch, rec.Revs.Epoch) || differ(c.Guard.State, rec.Revs.State) || differ(c.Guard.Lead, rec.Revs.Lead) || c.Group != 0 && c.Group != r.snap.GroupRev {
		return agent.ErrConflict
	}
	for _, x := range c.Votes {
		if !slices.ContainsFunc(rec.Votes, func(o ag.Vote) bool { return o.Member == x.Member && o.Rev == x.Rev }) {
			return agent.ErrConflict
		}
	}
	r.rev++
	if id := voteOf(c); id != "" {
		rec.Votes = slices.DeleteFunc(slices.Clone(rec.Votes), func(o ag.Vote) bool { return o.Member == id })
	}
	if c.Vote != nil {
		x := *c.Vote
		x.Rev = r.rev
		rec.Votes = append(rec.Votes, x)
	}
	if c.Epoch != nil {
		rec.Epoch, rec.Revs.Epoch = *c.Epoch, r.rev
	}
	if c.State != nil {
		rec.State, rec.Revs.State = c.State.Clone(), r.rev
	}
	if c.Lead != nil {
		rec.Lead, rec.Revs.Lead = *c.Lead, r.rev
	}
	past := *rec
	past.State = past.State.Clone()
	r.past = append(r.past, past)
	r.changed()
	return nil
}

// voteOf returns the member whose vote a commit changes.
func voteOf(c ag.Commit) ag.ReplicaID {
	if c.Vote != nil {
		return c.Vote.Member
	}
	return c.Unvote
}

func (r *Record) renew(epochRev int64, l ag.Lead) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.snap.Record.Revs.Epoch != epochRev {
		return agent.ErrConflict
	}
	r.rev++
	r.snap.Record.Lead, r.snap.Record.Revs.Lead = l, r.rev
	r.hint(agent.Hint{Lead: l, LeadRev: r.rev})
	return nil
}

// ErrUnreachable is the answer of a cut store.
var ErrUnreachable = errors.New("no member of the quorum answers")

// Fault is a fault of one call of a store.
type Fault struct {
	Late      time.Duration // the call takes effect after this
	Before    func()        // is done before it takes effect
	LoseReply bool          // it takes effect and its answer is lost
	Answers   time.Duration // its answer comes so long after it took effect
	Err       error         // it has no effect and ends in this error
}

// Store is one member's access to a Record. It implements agent.Store.
type Store struct {
	id     ag.ReplicaID
	shared atomic.Pointer[Record]
	hints  chan agent.Hint

	mu     sync.Mutex // guards the fields below
	cut    bool
	killed bool
	deaf   bool
	faults map[string][]Fault
	calls  map[string]int
	yields int
}

func (s *Store) record() *Record { return s.shared.Load() }

// Cut makes every call hang until its deadline.
func (s *Store) Cut(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = on
}

// Deafen makes the watch of this store silent, or active again.
func (s *Store) Deafen(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = on
}

// Kill makes every call fail at once, or not any more.
func (s *Store) Kill(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed = on
}

// Inject gives the next calls of that name ("read", "commit", "renew", "status", "close") these faults, one each.
func (s *Store) Inject(call string, f ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faults == nil {
		s.faults = map[string][]Fault{}
	}
	s.faults[call] = append(s.faults[call], f...)
}

// Calls counts the calls of that name so far.
func (s *Store) Calls(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call]
}

// call runs do under the faults of that call.
func (s *Store) call(ctx context.Context, name string, do func() error) error {
	s.mu.Lock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[name]++
	cut, killed := s.cut, s.killed
	var f Fault
	if q := s.faults[name]; len(q) > 0 {
		f, s.faults[name] = q[0], q[1:]
	}
	s.mu.Unlock()
	if killed {
		return ErrUnreachable
	}
	if cut {
		<-ctx.Done()
		return errors.Join(ErrUnreachable, ctx.Err())
	}
	if f.Err != nil {
		return f.Err
	}
	if f.Late > 0 {
		if retry.Sleep(ctx, f.Late) != nil {
			return errors.Join(ErrUnreachable, ctx.Err())
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.Before != nil {
		f.Before()
	}
	err := do()
	if f.LoseReply || f.Answers > 0 && retry.Sleep(ctx, f.Answers) != nil {
		<-ctx.Done()
		return errors.Join(ErrUnreachable, agent.ErrUnknown, ctx.Err())
	}
	return err
}

// Forge has the store hold a record that no replica has written, until it is called with false. Changes and renewals
// are made as before: the forger has left the revisions that guard them.
func (r *Record) Forge(forged bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forged = forged
	r.changed()
}

func (r *Record) isForged() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.forged
}

// Read implements agent.Store.
func (s *Store) Read(ctx context.Context) (snap agent.Snapshot, err error) {
	err = s.call(ctx, "read", func() error {
		if s.record().isForged() {
			return fmt.Errorf("%w: a test has forged it", agent.ErrForged)
		}
		snap = s.record().Snapshot()
		return nil
	})
	return snap, err
}

// Commit implements agent.Store.
func (s *Store) Commit(ctx context.Context, c ag.Commit) error {
	return s.call(ctx, "commit", func() error { return s.record().commit(c) })
}

// Renew implements agent.Store.
func (s *Store) Renew(ctx context.Context, epochRev int64, l ag.Lead) error {
	return s.call(ctx, "renew", func() error { return s.record().renew(epochRev, l) })
}

// Watch implements agent.Store.
func (s *Store) Watch(context.Context) <-chan agent.Hint { return s.hints }

// PutStatus implements agent.Store.
func (s *Store) PutStatus(ctx context.Context, id ag.ReplicaID, st agent.Status) error {
	return s.call(ctx, "status", func() error {
		r := s.record()
		r.mu.Lock()
		defer r.mu.Unlock()
		old, had := r.snap.Statuses[id]
		r.snap.Statuses[id] = st
		if !had || old.Key() != st.Key() {
			r.changed()
		}
		return nil
	})
}

// CloseOp implements agent.Store.
func (s *Store) CloseOp(ctx context.Context, rev int64) error {
	return s.call(ctx, "close", func() error {
		r := s.record()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.snap.OpRev != rev {
			return agent.ErrConflict
		}
		r.snap.Op, r.snap.OpRev = ag.Op{}, 0
		r.changed()
		return nil
	})
}

// Prefer implements agent.Store.
func (s *Store) Prefer(ag.ReplicaID) {}

// Yield implements agent.Store.
func (s *Store) Yield(context.Context, []ag.ReplicaID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.yields++
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
