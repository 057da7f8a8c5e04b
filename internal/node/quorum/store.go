package quorum

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
)

// Store is the quorum's store as the agent wants it: it implements agent.Store.
type Store struct {
	etcd   client
	self   ag.ReplicaID
	member func() member // nil while this node does not vote
	voters func() []ag.Replica
	pin    func() string // of this node's key; nil: it is not compared
	// external means that the store is an administrator's etcd. The configuration file names its endpoints in order of
	// preference.
	external bool

	primary atomic.Pointer[ag.ReplicaID]
	yielded atomic.Int64 // unix nanoseconds of the last move of the quorum's leadership
}

// client is the part of *etcd.Store that Store uses.
type client interface {
	Read(context.Context) (etcd.Snapshot, error)
	Commit(context.Context, ag.Revisions, etcd.Change) (ag.Record, error)
	Renew(ctx context.Context, epochRev int64, l ag.Lead) (int64, error)
	Watch(context.Context) <-chan etcd.Event
	PutStatus(ctx context.Context, id ag.ReplicaID, status json.RawMessage) error
	DeleteOp(ctx context.Context, rev, epochRev int64) error
	SetEndpoints(endpoints, last []string)
}

// errSucceeded is the error of Read on a node whose name belongs to another one since: it was taken out of the group.
var errSucceeded = errors.New("another node has this one's name in the group")

// Read implements agent.Store. Status reports that cannot be read are left out. The node that was replaced has no part
// in the record, though an administrator's etcd still lets it read: it would take what is said of its successor for
// itself, and vote and report in its name.
func (s *Store) Read(ctx context.Context) (agent.Snapshot, error) {
	x, err := s.etcd.Read(ctx)
	if errors.Is(err, etcd.ErrForged) {
		err = fmt.Errorf("%w: %w", agent.ErrForged, err)
	}
	if err != nil {
		return agent.Snapshot{}, err
	}
	if r, in := x.Group.Replica(s.self); in && s.pin != nil && r.KeyPin != s.pin() {
		return agent.Snapshot{}, errSucceeded
	}
	out := agent.Snapshot{Record: x.Record, Group: x.Group, GroupRev: x.GroupRev, OpRev: x.OpRev, StoreID: x.Store, StoreRev: x.StoreRev, Statuses: make(map[ag.ReplicaID]agent.Status, len(x.Statuses))}
	out.ByWitness = !s.external && slices.ContainsFunc(s.voters(), func(r ag.Replica) bool {
		return string(r.ID) == x.From && r.ID != s.self && !r.HasData()
	})
	if x.Op != nil {
		if err := json.Unmarshal(x.Op, &out.Op); err != nil {
			out.Op = ag.Op{} // unknown format: as if no request existed
		}
	}
	for id, raw := range x.Statuses {
		var st agent.Status
		if json.Unmarshal(raw, &st) == nil {
			out.Statuses[id] = st
		}
	}
	return out, nil
}

// Commit implements agent.Store.
func (s *Store) Commit(ctx context.Context, c ag.Commit) error {
	_, err := s.etcd.Commit(ctx, c.Guard, etcd.Change{Group: c.Group, Epoch: c.Epoch, State: c.State, Lead: c.Lead, Votes: c.Votes, Vote: c.Vote, Unvote: c.Unvote})
	return conflict(err)
}

// Renew implements agent.Store.
func (s *Store) Renew(ctx context.Context, epochRev int64, l ag.Lead) error {
	_, err := s.etcd.Renew(ctx, epochRev, l)
	return conflict(err)
}

// conflict adds to an error of etcd the one that the agent tests for.
func conflict(err error) error {
	switch {
	case errors.Is(err, etcd.ErrConflict):
		return errors.Join(agent.ErrConflict, err)
	case errors.Is(err, etcd.ErrUnknown):
		return errors.Join(agent.ErrUnknown, err)
	}
	return err
}

// Watch forwards the events of the store. A status report in which only a WAL position has changed is filtered out.
func (s *Store) Watch(ctx context.Context) <-chan agent.Hint {
	events, hints := s.etcd.Watch(ctx), make(chan agent.Hint)
	go func() { // ends with the watch, which ends with ctx
		said := map[ag.ReplicaID]string{}
		for e := range events {
			h := hintOf(e, said)
			if !h.Changed && h.LeadRev == 0 {
				continue
			}
			select {
			case hints <- h:
			case <-ctx.Done():
			}
		}
	}()
	return hints
}

// saidMost bounds the names whose last report is remembered: every member of the quorum can invent some.
const saidMost = 64

// hintOf returns the agent's hint for an event. said has the last status report of each replica, without its position.
func hintOf(e etcd.Event, said map[ag.ReplicaID]string) agent.Hint {
	h := agent.Hint{Changed: e.Record || e.Group || e.Op || e.Status}
	if e.Renewal != nil {
		h.Lead, h.LeadRev = e.Renewal.Lead, e.Renewal.Rev
	}
	for id, raw := range e.Reports {
		var st agent.Status
		if json.Unmarshal(raw, &st) != nil {
			continue
		}
		if key := st.Key(); key != said[id] {
			if len(said) >= saidMost {
				clear(said)
			}
			said[id], h.Changed = key, true
		}
	}
	return h
}

// PutStatus implements agent.Store.
func (s *Store) PutStatus(ctx context.Context, id ag.ReplicaID, st agent.Status) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return s.etcd.PutStatus(ctx, id, b)
}

// CloseOp implements agent.Store.
func (s *Store) CloseOp(ctx context.Context, opRev int64) error {
	return s.etcd.DeleteOp(ctx, opRev, -1)
}

// Prefer has this node's own member asked first, because it is nearest, but after the other replicas' while this node
// is the primary. A call then does not hang on the member whose disk the database writes to.
func (s *Store) Prefer(primary ag.ReplicaID) {
	if old := s.primary.Load(); s.external || old != nil && *old == primary {
		return
	}
	s.primary.Store(&primary)
	s.etcd.SetEndpoints(s.endpoints(primary))
}

// endpoints returns the voters in the order in which they are asked, and those that are asked only if no other answers:
// the members of witnesses, unless this node is one. A stolen witness can answer that a change was made of which nobody
// else knows, so that this node would lead on beside another one (docs/internals/safety.md, "Untrusted store"). A
// majority mostly has a replica's member that this node reaches.
func (s *Store) endpoints(primary ag.ReplicaID) (names, last []string) {
	own := false
	for _, r := range s.voters() {
		switch {
		case r.ID == s.self:
			own = s.member() != nil
		case r.HasData():
			names = append(names, string(r.ID))
		default:
			last = append(last, string(r.ID))
		}
	}
	slices.Sort(names)
	slices.Sort(last)
	switch {
	case own && primary == s.self:
		names = append(names, string(s.self))
	case own:
		names = append([]string{string(s.self)}, names...)
	}
	return names, last
}

// Refresh orders the members to ask anew. It must be called when the voters may have changed, or when the own member
// starts or stops.
func (s *Store) Refresh() {
	if s.external {
		return
	}
	var primary ag.ReplicaID
	if p := s.primary.Load(); p != nil {
		primary = *p
	}
	s.etcd.SetEndpoints(s.endpoints(primary))
}

// yieldEvery bounds how often the quorum's leadership is moved (docs/internals/safety.md, "Quorum store").
const yieldEvery = 10 * time.Second

// Yield moves the quorum's leadership away from this node, to one of the voters in among, a witness first. It returns
// nothing: the agent calls it again.
func (s *Store) Yield(ctx context.Context, among []ag.ReplicaID) {
	m := s.member()
	now := time.Now().UnixNano()
	if m == nil || !m.IsLeader() || now-s.yielded.Load() < int64(yieldEvery) {
		return
	}
	to := transferee(s.voters(), s.self, among)
	if to == 0 {
		return
	}
	s.yielded.Store(now)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_ = m.MoveLeader(ctx, to) // best-effort: a later turn tries again
}

// transferee returns the etcd id of the voter that takes the quorum's leadership over from self; 0: none. It is one of
// among, the members in reach. A leader that transfers to a dead member accepts no change of the record until the
// transfer times out, and still has the leadership if it then dies itself.
func transferee(voters []ag.Replica, self ag.ReplicaID, among []ag.ReplicaID) (to uint64) {
	for _, r := range voters {
		if r.ID != self && r.EtcdID != 0 && slices.Contains(among, r.ID) && (to == 0 || !r.HasData()) {
			to = r.EtcdID
		}
	}
	return to
}
