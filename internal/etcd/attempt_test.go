package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// begunMemory returns a Memory with a first record, and that record.
func begunMemory(t *testing.T) (*Memory, ag.Record) {
	t.Helper()
	m := NewMemory(testGroup)
	t.Cleanup(func() { _ = m.Close() })
	m.cfg.CallTimeout = 300 * time.Millisecond
	ctx := testContext(t)
	ok(t, m.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState))
	snap, err := m.Read(ctx)
	ok(t, err)
	return m, snap.Record
}

func seq(r ag.Record, n uint64) Change {
	st := r.State.Clone()
	st.Seq = n
	return Change{State: &st}
}

func TestLostAnswerIsReadBack(t *testing.T) {
	for _, lost := range []int{1, 2, 5} {
		m, r := begunMemory(t)
		m.LoseAnswers(lost)
		got, err := m.Commit(testContext(t), r.Revs, seq(r, 2))
		ok(t, err)
		if got.State.Seq != 2 || got.Revs.State <= r.Revs.State {
			t.Fatalf("%d answers lost: %+v", lost, got)
		}
		m.LoseAnswers(0)
		_, err = m.Commit(testContext(t), got.Revs, seq(got, 3))
		ok(t, err)
	}
}

func TestAllAnswersLostIsUnknownAndTheStoreRecovers(t *testing.T) {
	m, r := begunMemory(t)
	m.LoseAnswers(-1)
	_, err := m.Commit(testContext(t), r.Revs, seq(r, 2))
	want(t, err, ErrUnknown)
	m.LoseAnswers(0)
	snap, err := m.Read(testContext(t))
	ok(t, err)
	if snap.Record.State.Seq != 2 {
		t.Fatalf("seq %d", snap.Record.State.Seq)
	}
	_, err = m.Commit(testContext(t), r.Revs, seq(r, 3))
	want(t, err, ErrConflict)
	_, err = m.Commit(testContext(t), snap.Record.Revs, seq(r, 3))
	ok(t, err)
}

func TestUnreachableIsNotMade(t *testing.T) {
	m, r := begunMemory(t)
	m.Fail(-1)
	_, err := m.Commit(testContext(t), r.Revs, seq(r, 2))
	want(t, err, ErrNoQuorum)
	if errors.Is(err, ErrUnknown) {
		t.Fatal("a change that was never sent is said to be unknown")
	}
	m.Fail(0)
	got, err := m.Commit(testContext(t), r.Revs, seq(r, 3))
	ok(t, err)
	if got.State.Seq != 3 {
		t.Fatalf("seq %d", got.State.Seq)
	}
}

// A change that is still under way when it is given up must never take effect. That holds beside its own copy, after it
// was reported as not made, and after a later change of the same store.
func TestNothingIsAppliedLate(t *testing.T) {
	t.Run("the copy was applied", func(t *testing.T) {
		m, r := begunMemory(t)
		m.Hold(1)
		got, err := m.Commit(testContext(t), r.Revs, seq(r, 2))
		ok(t, err)
		m.Deliver()
		unchanged(t, m, got)
	})
	t.Run("said to be not made", func(t *testing.T) {
		m, r := begunMemory(t)
		stop := make(chan struct{})
		var release sync.WaitGroup
		m.Hold(-1)
		release.Go(func() { // let only the reading back through
			select {
			case <-time.After(m.cfg.CallTimeout * 8 / 10): // sending gives up after seven tenths
			case <-stop:
			}
			m.Hold(0)
		})
		_, err := m.Commit(testContext(t), r.Revs, seq(r, 2))
		close(stop)
		release.Wait()
		if err == nil {
			t.Fatal("a change that nobody answered succeeded")
		}
		if errors.Is(err, ErrUnknown) {
			t.Skip("the reading back came too late on this machine")
		}
		m.Deliver()
		unchanged(t, m, r)
	})
	t.Run("overtaken by a later change", func(t *testing.T) {
		m, r := begunMemory(t)
		m.Hold(-1)
		_, err := m.PutOp(testContext(t), 0, -1, json.RawMessage(`{"old":1}`))
		want(t, err, ErrUnknown)
		m.Hold(0)
		rev, err := m.PutOp(testContext(t), 0, -1, json.RawMessage(`{"new":1}`))
		ok(t, err)
		ok(t, m.DeleteOp(testContext(t), rev, -1))
		m.Deliver()
		snap, err := m.Read(testContext(t))
		ok(t, err)
		if snap.Op != nil {
			t.Fatalf("a request came back from the dead: %s", snap.Op)
		}
		unchanged(t, m, r)
	})
	t.Run("refused while a copy is under way", func(t *testing.T) {
		m, _ := begunMemory(t)
		rev, err := m.PutOp(testContext(t), 0, -1, json.RawMessage(`{"first":1}`))
		ok(t, err)
		m.Hold(1)
		_, err = m.PutOp(testContext(t), 0, -1, json.RawMessage(`{"second":1}`))
		want(t, err, ErrConflict)
		other, err := m.Open(StoreConfig{Group: testGroup, Replica: "n2", Attempt: "n2-1"})
		ok(t, err)
		ok(t, other.DeleteOp(testContext(t), rev, -1))
		m.Deliver()
		snap, err := m.Read(testContext(t))
		ok(t, err)
		if snap.Op != nil {
			t.Fatalf("a refused request came true: %s", snap.Op)
		}
	})
	t.Run("a new incarnation", func(t *testing.T) {
		m, r := begunMemory(t)
		old, err := m.Open(StoreConfig{Group: testGroup, Replica: "n1", Attempt: "n1-1", CallTimeout: 200 * time.Millisecond})
		ok(t, err)
		m.Hold(-1)
		_, err = old.PutOp(testContext(t), 0, -1, json.RawMessage(`{"old":1}`))
		want(t, err, ErrUnknown)
		m.Hold(0)
		fresh, err := m.Open(StoreConfig{Group: testGroup, Replica: "n1", Attempt: "n1-2"})
		ok(t, err)
		ok(t, fresh.PutToken(testContext(t), Token{ID: "t1", Expires: time.Now().Add(time.Hour)}, nil))
		m.Deliver()
		snap, err := m.Read(testContext(t))
		ok(t, err)
		if snap.Op != nil {
			t.Fatalf("a request of the old incarnation came true: %s", snap.Op)
		}
		unchanged(t, m, r)
	})
}

func TestReleaseIsNeverAnEcho(t *testing.T) {
	m, r := begunMemory(t)
	m.Hold(-1)
	_, err := m.Renew(testContext(t), r.Revs.Epoch, ag.Lead{Holder: "n1", Released: true})
	if err == nil {
		t.Fatal("a renewal without an answer succeeded")
	}
	m.Hold(0)
	_, err = m.Renew(testContext(t), r.Revs.Epoch, ag.Lead{Holder: "n1"})
	ok(t, err)
	m.Deliver()
	snap, err := m.Read(testContext(t))
	ok(t, err)
	if snap.Record.Lead.Released {
		t.Fatal("a release that was given up was applied after a later renewal")
	}
}

func TestOvertakenChangeIsAConflict(t *testing.T) {
	m, r := begunMemory(t)
	m.LoseAnswers(-1)
	done := make(chan error, 1)
	var got ag.Record
	go func() {
		rec, err := m.Commit(testContext(t), r.Revs, seq(r, 2))
		got = rec
		done <- err
	}()
	eventually(t, "the change is applied", func() bool {
		snap, err := m.Read(testContext(t))
		return err == nil && snap.Record.State.Seq == 2
	})
	// Another member takes over; its own answers are lost as well, so it learns the outcome by reading.
	m.back.set(func() {
		b, err := json.Marshal(ag.EpochRecord{Epoch: 2, Phase: ag.PhaseSeal, Leader: "n2"})
		if err != nil {
			t.Error(err)
		}
		m.back.apply(txn{Then: []op{put(m.keys.epoch, b)}})
		m.back.lose = 0
	})
	err := <-done
	if errors.Is(err, ErrUnknown) {
		t.Skip("too slow a machine to hit the moment")
	}
	want(t, err, ErrConflict)
	if got.Epoch.Epoch != 2 {
		t.Fatalf("record: %+v", got.Epoch)
	}
}

func unchanged(t *testing.T, m *Memory, r ag.Record) {
	t.Helper()
	snap, err := m.Read(testContext(t))
	ok(t, err)
	if snap.Record.Revs != r.Revs || snap.Record.State.Seq != r.State.Seq {
		t.Fatalf("the record moved from %+v to %+v", r.Revs, snap.Record.Revs)
	}
}

// TestOutcomesAreTrue makes changes over a store that loses, delays and refuses at random. It checks each reported
// outcome against the final contents: /state's Seq counts the changes that were made.
func TestOutcomesAreTrue(t *testing.T) {
	seed := time.Now().UnixNano()
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	for round := range 15 {
		m, r := begunMemory(t)
		m.cfg.CallTimeout = 60 * time.Millisecond
		made, unknown := uint64(0), uint64(0)
		for range 8 {
			m.LoseAnswers(rng.IntN(3))
			m.Hold(rng.IntN(3))
			m.Fail(rng.IntN(3))
			ctx, cancel := context.WithTimeout(testContext(t), time.Duration(1+rng.IntN(80))*time.Millisecond)
			_, err := m.Commit(ctx, r.Revs, seq(r, r.State.Seq+1))
			cancel()
			m.LoseAnswers(0)
			m.Hold(0)
			m.Fail(0)
			if rng.IntN(2) == 0 {
				m.Deliver()
			}
			switch {
			case err == nil:
				made++
			case errors.Is(err, ErrUnknown) || errors.Is(err, ErrConflict) && unknown > 0:
				unknown++
			case errors.Is(err, ErrConflict):
				t.Fatalf("seed %d round %d: conflict without a rival: %v", seed, round, err)
			}
			snap, err := m.Read(testContext(t))
			ok(t, err)
			r = snap.Record
		}
		m.Deliver()
		snap, err := m.Read(testContext(t))
		ok(t, err)
		if n := snap.Record.State.Seq - 1; n < made || n > made+unknown {
			t.Fatalf("seed %d round %d: %d changes are there, %d were reported made and %d unknown", seed, round, n, made, unknown)
		}
	}
}

// TestTokenIsConsumedOnce has many callers try for each of many tokens at once.
func TestTokenIsConsumedOnce(t *testing.T) {
	m, _ := begunMemory(t)
	var stores []*Store
	for _, id := range []ag.ReplicaID{"n1", "n2", "n3", "n4"} {
		s, err := m.Open(StoreConfig{Group: testGroup, Replica: id, Attempt: string(id)})
		ok(t, err)
		stores = append(stores, s)
	}
	for i := range 100 {
		id := fmt.Sprint("t", i)
		ok(t, m.PutToken(testContext(t), Token{ID: id, Expires: time.Now().Add(time.Hour)}, nil))
		var wins atomic.Int64
		var wg sync.WaitGroup
		start := make(chan struct{})
		for _, s := range stores {
			wg.Go(func() {
				<-start
				if _, err := s.ConsumeToken(testContext(t), id); err == nil {
					wins.Add(1)
				} else if !errors.Is(err, ErrTokenUsed) {
					t.Error(err)
				}
			})
		}
		close(start)
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("%d consumed token %s", wins.Load(), id)
		}
	}
}

// mutedConn passes requests on and, while muted, never delivers an answer.
type mutedConn struct {
	net.Conn
	muted  *atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *mutedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.muted.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *mutedConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// TestLostAnswerOverTheWire is the same with etcd, where a connection dies between request and answer.
func TestLostAnswerOverTheWire(t *testing.T) {
	c := newCluster(t, "n1")
	var muted atomic.Bool
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		conn, err := c.dial(ctx, "n1")
		if err != nil || endpoint == "good" {
			return conn, err
		}
		return &mutedConn{Conn: conn, muted: &muted, closed: make(chan struct{})}, nil
	}
	s := openTest(t, StoreConfig{Group: testGroup, Dial: dial, Endpoints: []string{"bad", "good"}, Replica: "n1", Attempt: "n1-1", CallTimeout: 4 * time.Second})
	ctx := testContext(t)
	ok(t, s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState))
	snap, err := s.Read(ctx)
	ok(t, err)
	muted.Store(true)
	r, err := s.Commit(ctx, snap.Record.Revs, seq(snap.Record, 2))
	ok(t, err)
	if r.State.Seq != 2 {
		t.Fatalf("record: %+v", r)
	}
	// the endpoint that failed comes last for a while: no second wait
	began := time.Now()
	_, err = s.Commit(ctx, r.Revs, seq(r, 3))
	ok(t, err)
	if took := time.Since(began); took > 3*time.Second {
		t.Fatalf("the change after it took %v", took)
	}
	// with the bad endpoint alone the outcome cannot be known
	s.SetEndpoints([]string{"bad"}, nil)
	_, err = s.Commit(ctx, r.Revs, seq(r, 4))
	want(t, err, ErrUnknown, ErrNoQuorum) // the latter if the connection was given up before the request
}
