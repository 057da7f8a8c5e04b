package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// longest is after what time the requests of a distant quorum have ended.
const longest = 10 * time.Second

// distant is a quorum whose members answer, and apply changes, after a while.
type distant struct {
	*memory
	after map[string]time.Duration // by member; negative: its requests fail at once
	mu    sync.Mutex
	asked []string
}

func (d *distant) txn(ctx context.Context, endpoint string, t txn) (txnResult, error) {
	d.mu.Lock()
	d.asked = append(d.asked, endpoint)
	d.mu.Unlock()
	after := d.after[endpoint]
	if after < 0 {
		return txnResult{}, errors.New("connection refused")
	}
	wait := func(ctx context.Context) error {
		select {
		case <-time.After(after / 2):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var res txnResult
	var err error
	there := make(chan struct{})
	go func() { // a request goes on when its caller has given it up
		_ = wait(context.Background())
		res, err = d.memory.txn(context.Background(), endpoint, t)
		close(there)
	}()
	select {
	case <-there:
	case <-ctx.Done():
		return txnResult{}, ctx.Err()
	}
	if err == nil {
		err = wait(ctx)
	}
	return res, err
}

// TestSlowMembersAreGivenTheirTime holds that a quorum all of whose members take long, as over a slow way, answers
// within the time of a call: the lease of a primary behind such a way is renewed. A member that does not answer at all,
// or refuses, costs a part of the time only.
func TestSlowMembersAreGivenTheirTime(t *testing.T) {
	const dead = longest
	for _, c := range []struct {
		after [3]time.Duration
		most  time.Duration // that a call takes; 0: it fails
	}{
		{[3]time.Duration{900 * time.Millisecond, 900 * time.Millisecond, 900 * time.Millisecond}, 900 * time.Millisecond},
		{[3]time.Duration{900 * time.Millisecond, 200 * time.Millisecond, dead}, 700 * time.Millisecond},
		{[3]time.Duration{dead, dead, 240 * time.Millisecond}, 990 * time.Millisecond},
		{[3]time.Duration{-1, dead, 450 * time.Millisecond}, 950 * time.Millisecond},
		{[3]time.Duration{-1, -1, 10 * time.Millisecond}, 10 * time.Millisecond},
		{[3]time.Duration{dead, dead, dead}, 0},
	} {
		t.Run(fmt.Sprint(c.after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, _ := begunMemory(t)
				s, d := far(t, m, c.after)
				began := time.Now()
				_, err := s.read(t.Context(), get(s.keys.epoch))
				if took := time.Since(began); (err != nil) != (c.most == 0) || c.most > 0 && took > c.most {
					t.Errorf("after %v: %v; asked %q", took, err, d.asked)
				}
				if c.most == 0 {
					want(t, err, ErrNoQuorum)
				}
			})
		})
	}
}

// TestARenewalOverASlowWay holds that a lease is renewed, again and again, over a way that takes nearly the time of a
// call, and that the copies of a renewal which other members got meanwhile change nothing.
func TestARenewalOverASlowWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, r := begunMemory(t)
		const way = 900 * time.Millisecond
		s, _ := far(t, m, [3]time.Duration{way, way, way})
		rev := int64(0)
		for range 5 {
			next, err := s.Renew(t.Context(), r.Revs.Epoch, ag.Lead{Epoch: 1, Holder: "n1"})
			if err != nil || next <= rev {
				t.Fatalf("renewed at revision %d after %d: %v", next, rev, err)
			}
			rev = next
			time.Sleep(time.Second)
			snap, err := m.Read(t.Context())
			ok(t, err)
			if snap.Record.Revs.Lead != rev {
				t.Fatalf("/lead is at revision %d after a renewal at %d", snap.Record.Revs.Lead, rev)
			}
		}
	})
}

// far opens a store whose three members answer after these times.
func far(t *testing.T, m *Memory, after [3]time.Duration) (*Store, *distant) {
	t.Helper()
	names := []string{"n1", "n2", "n3"}
	d := &distant{memory: m.back, after: map[string]time.Duration{}}
	for i, x := range after {
		d.after[names[i]] = x
	}
	s, err := openStore(StoreConfig{Group: testGroup, Endpoints: names, Replica: "n1", Attempt: "n1", CallTimeout: time.Second}, d)
	ok(t, err)
	t.Cleanup(func() { _ = s.Close(); time.Sleep(longest) }) // until what was given up has ended
	return s, d
}

// adding is a quorum whose members take this long to add another; the first of them then says that it could not.
type adding struct {
	*memory
	after map[string]time.Duration
}

func (a adding) addLearner(ctx context.Context, endpoint, peerURL string) (uint64, error) {
	time.Sleep(a.after[endpoint])
	if endpoint == "n1" {
		return 0, errors.New("connection reset")
	}
	return a.memory.addLearner(ctx, endpoint, peerURL)
}

// TestALearnerAddedAtTwoMembers holds that two members asked at once to add another do not share what they answer: the
// race detector finds it.
func TestALearnerAddedAtTwoMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := begunMemory(t)
		back := adding{m.back, map[string]time.Duration{"n1": 600 * time.Millisecond, "n2": 100 * time.Millisecond}}
		s, err := openStore(StoreConfig{Group: testGroup, Endpoints: []string{"n1", "n2"}, Replica: "n1", Attempt: "n1"}, back)
		ok(t, err)
		t.Cleanup(func() { _ = s.Close() })
		if id, _, err := s.AddLearner(t.Context(), "https://n3:1"); err != nil || id == 0 {
			t.Errorf("added %x: %v", id, err)
		}
	})
}
