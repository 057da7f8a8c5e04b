package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// groupStore is the quorum's store as the agent wants it.
type groupStore struct {
	store  *etcd.Store
	self   ag.ReplicaID
	member func() *embedded.Member // nil while this node does not vote
	voters func() []ag.Replica
	// external says that the store is an administrator's etcd, whose endpoints the configuration file names in order of preference.
	external bool

	primary atomic.Pointer[ag.ReplicaID]
	yielded atomic.Int64 // unix nanoseconds of the last move of the quorum's leadership
}

func (s *groupStore) Read(ctx context.Context) (agent.Snapshot, error) {
	x, err := s.store.Read(ctx)
	if err != nil {
		return agent.Snapshot{}, err
	}
	out := agent.Snapshot{Record: x.Record, Group: x.Group, GroupRev: x.GroupRev, OpRev: x.OpRev, StoreID: x.Store, StoreRev: x.StoreRev, Statuses: make(map[ag.ReplicaID]agent.Status, len(x.Statuses))}
	if x.Op != nil {
		if err := json.Unmarshal(x.Op, &out.Op); err != nil {
			out.Op = ag.Op{} // void: somebody else's format
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

func (s *groupStore) Commit(ctx context.Context, c ag.Commit) error {
	_, err := s.store.Commit(ctx, c.Guard, etcd.Change{Epoch: c.Epoch, State: c.State, Lead: c.Lead, Votes: c.Votes, Vote: c.Vote, Unvote: c.Unvote})
	return conflict(err)
}

func (s *groupStore) Renew(ctx context.Context, epochRev int64, l ag.Lead) error {
	_, err := s.store.Renew(ctx, epochRev, l)
	return conflict(err)
}

func conflict(err error) error {
	switch {
	case errors.Is(err, etcd.ErrConflict):
		return errors.Join(agent.ErrConflict, err)
	case errors.Is(err, etcd.ErrUnknown):
		return errors.Join(agent.ErrUnknown, err)
	}
	return err
}

// Watch passes the store's events on. A report that differs from the last of its replica only by how far that is is no news.
func (s *groupStore) Watch(ctx context.Context) <-chan agent.Hint {
	events, hints := s.store.Watch(ctx), make(chan agent.Hint)
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
			said[id], h.Changed = key, true
		}
	}
	return h
}

func (s *groupStore) PutStatus(ctx context.Context, id ag.ReplicaID, st agent.Status) error {
	b, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return s.store.PutStatus(ctx, id, b)
}

func (s *groupStore) CloseOp(ctx context.Context, opRev int64) error {
	return s.store.DeleteOp(ctx, opRev, -1)
}

// Prefer asks this node's own member first, because it is nearest, but last while this node is the primary: then a call never
// hangs on the member whose disk the database is writing to.
func (s *groupStore) Prefer(primary ag.ReplicaID) {
	if old := s.primary.Load(); s.external || old != nil && *old == primary {
		return
	}
	s.primary.Store(&primary)
	s.store.SetEndpoints(s.endpoints(primary))
}

func (s *groupStore) endpoints(primary ag.ReplicaID) []string {
	var names []string
	own := false
	for _, r := range s.voters() {
		if r.ID == s.self {
			own = s.member() != nil
			continue
		}
		names = append(names, string(r.ID))
	}
	slices.Sort(names)
	switch {
	case own && primary == s.self:
		names = append(names, string(s.self))
	case own:
		names = append([]string{string(s.self)}, names...)
	}
	return names
}

// refresh is called when the voters may have changed.
func (s *groupStore) refresh() {
	if s.external {
		return
	}
	var primary ag.ReplicaID
	if p := s.primary.Load(); p != nil {
		primary = *p
	}
	s.store.SetEndpoints(s.endpoints(primary))
}

// yieldEvery bounds how often the quorum's leadership is moved (docs/internals/safety.md, "Quorum store").
const yieldEvery = 10 * time.Second

// Yield moves the quorum's leadership away from this node: to the witness, or else to any other voter of those.
func (s *groupStore) Yield(ctx context.Context, among []ag.ReplicaID) {
	m := s.member()
	now := time.Now().UnixNano()
	if m == nil || !m.IsLeader() || now-s.yielded.Load() < int64(yieldEvery) {
		return
	}
	to := heir(s.voters(), s.self, among)
	if to == 0 {
		return
	}
	s.yielded.Store(now)
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_ = m.MoveLeader(ctx, to) // a convenience: another turn tries again
}

// heir is the quorum member that takes over its leadership from self; 0: none. It is one of those in reach: a leader that hands over to a
// dead member takes no change of the record until it gives that up, and has the leadership still when it dies itself.
func heir(voters []ag.Replica, self ag.ReplicaID, among []ag.ReplicaID) (to uint64) {
	for _, r := range voters {
		if r.ID != self && r.EtcdID != 0 && slices.Contains(among, r.ID) && (to == 0 || !r.HasData()) {
			to = r.EtcdID
		}
	}
	return to
}
