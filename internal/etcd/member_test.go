package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/etcd/embedded"
)

// commitWithin makes one change, and repeats it until it is made, as an agent would.
func commitWithin(t *testing.T, s *Store, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		snap, err := s.Read(ctx)
		if err == nil {
			_, err = s.Commit(ctx, snap.Record.Revs, seq(snap.Record, snap.Record.State.Seq+1))
		}
		cancel()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > limit {
			t.Fatalf("no change could be made within %v: %v", limit, err)
		}
	}
}

func TestQuorumOfThree(t *testing.T) {
	c := newCluster(t, "n1", "n2", "n3")
	ctx := testContext(t)
	s := c.store("n1-1", "n1", "n2", "n3")
	ok(t, s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState))
	members, err := s.Members(ctx)
	ok(t, err)
	if len(members) != 3 || members[0].Name != "n1" || members[0].ID != c.nodes["n1"].member.ID() || members[0].Learner {
		t.Fatalf("members: %+v", members)
	}
	t.Run("peer traffic offers no class", func(t *testing.T) {
		for name, n := range c.nodes {
			n.relay.mu.Lock()
			if len(n.relay.offers) != 1 || n.relay.offers["[]"] == 0 {
				t.Errorf("%s was offered the protocols %v", name, n.relay.offers)
			}
			n.relay.mu.Unlock()
		}
	})
	t.Run("the lead moves", func(t *testing.T) {
		from := c.leader()
		for name, n := range c.nodes {
			if n == from {
				continue
			}
			want(t, n.member.MoveLeader(ctx, n.member.ID()+1), embedded.ErrNotLeader)
			ok(t, from.member.MoveLeader(ctx, n.member.ID()))
			eventually(t, name+" leads", n.member.IsLeader)
			from = n
		}
		ok(t, from.member.Yield())
		if from.member.IsLeader() {
			t.Fatal("it leads on after yielding")
		}
		ok(t, from.member.Yield())
		commitWithin(t, s, patience)
	})
	t.Run("a follower dies and returns", func(t *testing.T) {
		var victim *node
		for _, n := range c.nodes {
			if n != c.leader() {
				victim = n
			}
		}
		id := victim.member.ID()
		victim.stop()
		ordered := c.store("n1-2", victim.config.Name, "n1", "n2", "n3") // the dead one is preferred
		t.Logf("a change took %v with a dead follower preferred", commitWithin(t, ordered, patience))
		victim.start()
		victim.ready()
		if victim.member.ID() != id {
			t.Fatalf("it came back as %x, was %x", victim.member.ID(), id)
		}
		commitWithin(t, c.store("n1-3", victim.config.Name), patience)
	})
	t.Run("the leader dies", func(t *testing.T) {
		victim := c.leader()
		events := s.Watch(ctx)
		await(t, events, Event{Record: true})
		began := time.Now()
		victim.stop()
		commitWithin(t, s, patience)
		t.Logf("a change was made %v after the leader's death", time.Since(began))
		await(t, events, Event{Record: true})
		victim.start()
		victim.ready()
	})
	t.Run("no quorum, no change", func(t *testing.T) {
		c.nodes["n2"].stop()
		c.nodes["n3"].stop()
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		snap, err := c.store("n1-4", "n1").Read(short)
		if err == nil {
			t.Fatalf("a member alone answered a linearizable read: %+v", snap)
		}
		want(t, err, ErrNoQuorum)
		for _, name := range []string{"n2", "n3"} {
			c.nodes[name].start()
			c.nodes[name].ready()
		}
		commitWithin(t, s, patience)
	})
	t.Run("a fourth joins and leaves", func(t *testing.T) { joinAndLeave(t, c, s) })
}

func joinAndLeave(t *testing.T, c *cluster, s *Store) {
	ctx := testContext(t)
	n4 := c.add("n4", false, nil)
	id, initial, err := s.AddLearner(ctx, n4.config.AdvertisePeer)
	ok(t, err)
	again, _, err := s.AddLearner(ctx, n4.config.AdvertisePeer)
	ok(t, err)
	if again != id || len(initial) != 3 || initial["n2"] != c.nodes["n2"].config.AdvertisePeer {
		t.Fatalf("learner %x, then %x; initial %v", id, again, initial)
	}
	promote := func(within time.Duration) error {
		short, cancel := context.WithTimeout(ctx, within)
		defer cancel()
		return s.PromoteLearner(short, id)
	}
	err = promote(300 * time.Millisecond)
	for within := time.Second; errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrNotReady) && within < patience; within *= 2 {
		err = promote(within) // a busy machine has not answered once
	}
	want(t, err, ErrNotReady)
	n4.config.Initial = initial
	n4.start()
	n4.ready()
	if n4.member.ID() != id {
		t.Fatalf("the learner runs as %x, was added as %x", n4.member.ID(), id)
	}
	ok(t, s.PromoteLearner(ctx, id))
	ok(t, s.PromoteLearner(ctx, id))
	members, err := s.Members(ctx)
	ok(t, err)
	if len(members) != 4 || members[3].Name != "n4" || members[3].Learner {
		t.Fatalf("members: %+v", members)
	}
	commitWithin(t, c.store("n4-1", "n4"), patience)
	if _, _, err := s.AddLearner(ctx, n4.config.AdvertisePeer); err == nil {
		t.Fatal("the address of a voter was added again")
	}
	ok(t, s.RemoveMember(ctx, id))
	ok(t, s.RemoveMember(ctx, id))
	select {
	case <-n4.member.Done():
	case <-time.After(patience):
		t.Fatal("the removed member runs on")
	}
	want(t, n4.member.Err(), embedded.ErrRemoved)
	commitWithin(t, s, patience)
}

// TestBlackHoleCostsLittle holds that an endpoint that accepts connections and never answers does not cost a call its
// deadline.
func TestBlackHoleCostsLittle(t *testing.T) {
	c := newCluster(t, "n1")
	dial := func(ctx context.Context, endpoint string) (net.Conn, error) {
		if endpoint == "hole" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return c.dial(ctx, endpoint)
	}
	s := openTest(t, StoreConfig{Group: testGroup, Dial: dial, Endpoints: []string{"hole", "n1"}, Replica: "n1", Attempt: "n1-1", CallTimeout: 20 * time.Second})
	ctx := testContext(t)
	ok(t, s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState))
	began := time.Now()
	for range 10 {
		snap, err := s.Read(ctx)
		ok(t, err)
		_, err = s.Renew(ctx, snap.Record.Revs.Epoch, ag.Lead{Holder: "n1"})
		ok(t, err)
	}
	if took := time.Since(began); took > 15*time.Second { // less than one wait for the hole
		t.Errorf("20 calls took %v", took)
	}
	events := s.Watch(ctx)
	await(t, events, Event{Record: true})
	ok(t, s.PutStatus(ctx, "n1", json.RawMessage(`{}`)))
	await(t, events, Event{Reports: map[ag.ReplicaID]json.RawMessage{"n1": nil}})
}

func TestLostDirectoryIsRefused(t *testing.T) {
	c := newCluster(t, "n1")
	n := c.nodes["n1"]
	id := n.member.ID()
	n.stop()
	ctx := testContext(t)

	n.start() // intact: starts, under the same id
	if n.member.ID() != id {
		t.Fatalf("came back as %x, was %x", n.member.ID(), id)
	}
	n.stop()

	aside := n.config.Dir + ".aside"
	ok(t, os.Rename(n.config.Dir, aside))
	_, err := embedded.Start(ctx, n.config)
	want(t, err, embedded.ErrLost)
	ok(t, os.MkdirAll(n.config.Dir, 0o700)) // an unmounted device leaves an empty directory
	_, err = embedded.Start(ctx, n.config)
	want(t, err, embedded.ErrLost)

	// the data of another member in its place
	other := newCluster(t, "x1")
	other.nodes["x1"].stop()
	ok(t, os.Remove(n.config.Dir))
	ok(t, os.Rename(other.nodes["x1"].config.Dir, n.config.Dir))
	_, err = embedded.Start(ctx, n.config)
	want(t, err, embedded.ErrLost)

	ok(t, os.WriteFile(n.config.IdentityFile, []byte("{"), 0o600))
	if _, err = embedded.Start(ctx, n.config); err == nil {
		t.Fatal("an unreadable mark was taken for none")
	}

	// a lost mark is written again
	ok(t, os.Remove(n.config.IdentityFile))
	ok(t, os.RemoveAll(n.config.Dir))
	ok(t, os.Rename(aside, n.config.Dir))
	n.start()
	n.ready()
	was, err := os.ReadFile(n.config.IdentityFile)
	ok(t, err)
	var got struct {
		MemberID uint64 `json:"member_id"`
		Started  bool   `json:"started"`
	}
	ok(t, json.Unmarshal(was, &got))
	if got.MemberID != id || !got.Started {
		t.Fatalf("the identity file: %s", was)
	}
}

func TestMemberConfigIsChecked(t *testing.T) {
	dir := shortDir(t)
	good := embedded.Config{
		Name: "n1", Dir: filepath.Join(dir, "etcd"), IdentityFile: filepath.Join(dir, "mark"), AdvertisePeer: "https://127.0.0.1:5022",
		ClientSocket: filepath.Join(dir, "c"), New: true,
	}
	for name, spoil := range map[string]func(*embedded.Config){
		"name":      func(c *embedded.Config) { c.Name = "a=b,c" },
		"directory": func(c *embedded.Config) { c.Dir = "" },
		"mark":      func(c *embedded.Config) { c.IdentityFile = "" },
		"socket":    func(c *embedded.Config) { c.ClientSocket = "/" + string(make([]byte, 200)) },
		"scheme":    func(c *embedded.Config) { c.AdvertisePeer = "http://127.0.0.1:5022" },
		"port":      func(c *embedded.Config) { c.AdvertisePeer = "https://127.0.0.1" },
	} {
		c := good
		spoil(&c)
		if _, err := embedded.Start(context.Background(), c); err == nil {
			t.Errorf("%s: accepted %+v", name, c)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("a refused configuration left %v (%v)", entries, err)
	}
}

// TestCloseBeforeReady holds that a member that has never found a quorum can be closed, and started again.
func TestCloseBeforeReady(t *testing.T) {
	c := &cluster{t: t, dir: shortDir(t), nodes: map[string]*node{}}
	c.pki = newPKI(t, c.dir)
	n := c.add("n1", true, map[string]string{"n2": "https://127.0.0.1:1"})
	n.start()
	short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := n.member.Ready(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("ready without a quorum: %v", err)
	}
	began := time.Now()
	ok(t, n.member.Close())
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("closing took %v", took)
	}
	n.start()
	ok(t, n.member.Close())
}

func TestCloseWithWatchesOpen(t *testing.T) {
	c := newCluster(t, "n1")
	s := c.store("n1-1", "n1")
	events := s.Watch(testContext(t))
	await(t, events, Event{Record: true})
	began := time.Now()
	ok(t, c.nodes["n1"].member.Close())
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("closing took %v", took)
	}
	ok(t, s.Close())
	for range events {
	}
	if _, err := s.Read(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed store said %v", err)
	}
}

func BenchmarkStore(b *testing.B) {
	for name, names := range map[string][]string{"one": {"n1"}, "three": {"n1", "n2", "n3"}} {
		b.Run(name, func(b *testing.B) {
			c := newCluster(b, names...)
			s := c.store("n1-1", names...)
			ctx := context.Background()
			if err := s.Bootstrap(ctx, firstGroup(testGroup), firstEpoch, firstState); err != nil {
				b.Fatal(err)
			}
			snap, err := s.Read(ctx)
			if err != nil {
				b.Fatal(err)
			}
			rec := snap.Record
			b.Run("read", func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Read(ctx); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("renew", func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Renew(ctx, rec.Revs.Epoch, ag.Lead{Holder: "n1"}); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("commit", func(b *testing.B) {
				rec.Revs.Lead = -1
				for b.Loop() {
					r, err := s.Commit(ctx, ag.Revisions{Epoch: rec.Revs.Epoch, State: rec.Revs.State, Lead: -1}, seq(rec, rec.State.Seq+1))
					if err != nil {
						b.Fatal(err)
					}
					rec = r
				}
			})
		})
	}
}
