package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/coteriedb/coterie/internal/ag"
)

// Memory is a quorum store without etcd, for tests of the store's users. It is a Store (with the same code down to the
// transaction) over a map, with switches that make calls fail, lose their answers or arrive late. Open gives further
// members a Store of their own over the same keys.
type Memory struct {
	*Store
	back *memory
}

// NewMemory returns an empty store of one group.
func NewMemory(group ag.GroupID) *Memory {
	m := &memory{id: 1, keys: map[string]kv{}, watchers: map[chan []kv]struct{}{}, list: []MemberInfo{{ID: 1, Name: "memory"}}, nextID: 2}
	s, err := openStore(StoreConfig{Group: group, Endpoints: []string{"memory"}, Attempt: "memory"}, m)
	if err != nil {
		panic(err) // a test gave a group id that is not a UUID
	}
	return &Memory{Store: s, back: m}
}

// Open returns another Store over the same keys. Dial is not used; Endpoints default to one.
func (m *Memory) Open(c StoreConfig) (*Store, error) {
	if len(c.Endpoints) == 0 {
		c.Endpoints = []string{"memory"}
	}
	return openStore(c, &memoryView{memory: m.back})
}

// Fail makes the next n requests, of any Store, fail before they arrive; n < 0: all of them until the next Fail.
func (m *Memory) Fail(n int) { m.back.set(func() { m.back.fail = n }) }

// LoseAnswers makes the next n changes be applied, and their answers be lost.
func (m *Memory) LoseAnswers(n int) { m.back.set(func() { m.back.lose = n }) }

// Hold makes the next n changes stay under way: their callers see no answer, Deliver applies them.
func (m *Memory) Hold(n int) { m.back.set(func() { m.back.hold = n }) }

// Deliver applies the changes that are held, in order.
func (m *Memory) Deliver() {
	m.back.set(func() {
		for _, t := range m.back.held {
			m.back.apply(t)
		}
		m.back.held = nil
	})
}

// Put overwrites a key below the group's prefix, such as "epoch", without any guard: to test the effect of unreadable
// values.
func (m *Memory) Put(key string, value []byte) {
	m.back.set(func() { m.back.apply(txn{Then: []op{put(m.keys.prefix+key, value)}}) })
}

// memory is the backend: etcd's transactions and watches over a map.
type memory struct {
	id               uint64 // the store's identity
	mu               sync.Mutex
	rev              int64
	keys             map[string]kv
	watchers         map[chan []kv]struct{}
	held             []txn
	fail, lose, hold int
	list             []MemberInfo
	nextID           uint64
}

// memoryView is one Store's share of a memory: closing it leaves the others alone.
type memoryView struct{ *memory }

var (
	errUnreachable = errors.New("the memory store is unreachable")
	errLostAnswer  = errors.New("the memory store lost its answer")
)

func (m *memory) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// take uses up one of n.
func take(n *int) bool {
	if *n > 0 {
		*n--
		return true
	}
	return *n < 0
}

func (m *memory) txn(ctx context.Context, _ string, t txn) (txnResult, error) {
	if ctx.Err() != nil {
		return txnResult{}, notSentError{ctx.Err()}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if take(&m.fail) {
		return txnResult{}, notSentError{errUnreachable}
	}
	changes := slices.ContainsFunc(append(slices.Clone(t.Then), t.Else...), func(o op) bool { return o.kind == opPut || o.kind == opDelete || o.kind == opDeleteRange })
	if changes && take(&m.hold) {
		m.held = append(m.held, t)
		return txnResult{}, errLostAnswer
	}
	res := m.apply(t)
	if changes && take(&m.lose) {
		return txnResult{}, errLostAnswer
	}
	return res, nil
}

// apply runs a transaction as etcd does: all guards against the state before, then one revision for all its changes,
// seen by the reads that follow them.
func (m *memory) apply(t txn) txnResult {
	res := txnResult{ok: true}
	for _, g := range t.If {
		res.ok = res.ok && m.keys[g.key].rev == g.rev
	}
	ops := t.Then
	if !res.ok {
		ops = t.Else
	}
	next := m.rev + 1
	var changed []kv
	for _, o := range ops {
		switch o.kind {
		case opPut:
			p := place{m.id, next, 1}
			if old, ok := m.keys[o.key]; ok {
				p = old.next()
			}
			m.keys[o.key] = kv{key: o.key, value: slices.Clone(o.value), rev: next, place: p}
			changed = append(changed, m.keys[o.key])
		case opDelete:
			if _, ok := m.keys[o.key]; ok {
				delete(m.keys, o.key)
				changed = append(changed, kv{key: o.key, rev: next})
			}
		case opDeleteRange:
			for _, key := range slices.Sorted(maps.Keys(m.keys)) {
				if key >= o.key && key < string(o.value) {
					delete(m.keys, key)
					changed = append(changed, kv{key: key, rev: next})
				}
			}
		case opGet:
			found := []kv{}
			if k, ok := m.keys[o.key]; ok {
				found = append(found, k)
			}
			res.reads = append(res.reads, found)
		case opRange:
			found := []kv{}
			for _, key := range slices.Sorted(maps.Keys(m.keys)) {
				if strings.HasPrefix(key, o.key) && (o.limit == 0 || int64(len(found)) < o.limit) {
					found = append(found, m.keys[key])
				}
			}
			res.reads = append(res.reads, found)
		}
	}
	if len(changed) > 0 {
		m.rev = next
		m.tell(changed)
	}
	res.rev, res.store = m.rev, m.id
	return res
}

// tell passes the changed keys to the watchers.
func (m *memory) tell(changed []kv) {
	for w := range m.watchers {
		select {
		case w <- changed:
		default: // as etcd does with a receiver that is too slow: the stream ends
			close(w)
			delete(m.watchers, w)
		}
	}
}

func (m *memory) watch(ctx context.Context, _, prefix string, connected func(), seen func(changed []kv)) error {
	w := make(chan []kv, 256)
	var failed bool
	m.set(func() {
		if failed = m.fail < 0; !failed {
			m.watchers[w] = struct{}{}
		}
	})
	if failed {
		return errUnreachable
	}
	defer m.set(func() { delete(m.watchers, w) })
	connected()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case changed, ok := <-w:
			if !ok {
				return errUnreachable
			}
			if changed = slices.DeleteFunc(slices.Clone(changed), func(k kv) bool { return !strings.HasPrefix(k.key, prefix) }); len(changed) > 0 {
				seen(changed)
			}
		}
	}
}

// locked runs f under the lock unless the store is to fail.
func (m *memory) locked(f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if take(&m.fail) {
		return notSentError{errUnreachable}
	}
	return f()
}

func (m *memory) members(_ context.Context, _ string) (out []MemberInfo, err error) {
	err = m.locked(func() error { out = slices.Clone(m.list); return nil })
	return out, err
}

func (m *memory) addLearner(_ context.Context, _, peerURL string) (id uint64, err error) {
	err = m.locked(func() error {
		for _, other := range m.list {
			if slices.Contains(other.PeerURLs, peerURL) {
				return finalError{errPeerURLExists}
			}
			if other.Learner {
				return finalError{errors.New("another learner is joining")}
			}
		}
		id = m.nextID
		m.nextID++
		m.list = append(m.list, MemberInfo{ID: id, Name: fmt.Sprintf("member%d", id), PeerURLs: []string{peerURL}, Learner: true})
		return nil
	})
	return id, err
}

func (m *memory) promote(_ context.Context, _ string, id uint64) error {
	return m.locked(func() error {
		i := slices.IndexFunc(m.list, func(x MemberInfo) bool { return x.ID == id })
		switch {
		case i < 0:
			return finalError{errMemberNotFound}
		case !m.list[i].Learner:
			return finalError{errNotLearner}
		}
		m.list[i].Learner = false
		return nil
	})
}

func (m *memory) remove(_ context.Context, _ string, id uint64) error {
	return m.locked(func() error {
		i := slices.IndexFunc(m.list, func(x MemberInfo) bool { return x.ID == id })
		if i < 0 {
			return finalError{errMemberNotFound}
		}
		m.list = slices.Delete(m.list, i, i+1)
		return nil
	})
}

func (m *memory) keep([]string) {}
func (m *memory) close()        {}
