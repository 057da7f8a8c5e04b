package listener

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// The errors of a client that no replica serves, with the numbers known from availability groups.
func TestRefusalsHaveTheirNumbers(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.ConnectWait = trustAll, 50*time.Millisecond })
	routes := func(change func(*ag.Routes)) {
		r := *fullRoutes(1)
		r.Targets = append([]ag.Target(nil), r.Targets...)
		change(&r)
		g.publish(&r)
	}
	for _, c := range []struct {
		name, address string
		number        int
		change        func(*ag.Routes)
	}{
		{"no primary, to write", g.rw, 983, func(r *ag.Routes) { r.Primary, r.WriteOpen = "", false }},
		{"the primary's gate is closed", g.rw, 983, func(r *ag.Routes) { r.WriteOpen = false }},
		{"no readable secondary, the primary is not listed", g.ro, 982, func(r *ag.Routes) {
			r.ReadList = [][]ag.ReplicaID{{"b", "c"}}
			r.Targets[1].Readable, r.Targets[2].Readable = false, false
		}},
		{"the primary takes no readers and lists nobody", g.ro, 979, func(r *ag.Routes) { r.ReadList = [][]ag.ReplicaID{{}, {}} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			routes(c.change)
			_, err := g.dial(c.address, "user=postgres")
			if state := fail.StateOf(c.number); sqlstate(err) != state || !strings.Contains(err.Error(), fmt.Sprintf("(%d)", c.number)) {
				t.Errorf("%v, want %s (%d)", err, state, c.number)
			}
		})
	}
	// An unreadable secondary is passed over; without a primary the others still serve readers.
	routes(func(r *ag.Routes) { r.Targets[1].Readable = false; r.Primary, r.WriteOpen = "", false })
	if got := value[string](t, g.mustDial(g.ro, "user=postgres"), "show cluster_name"); got != "c" {
		t.Errorf("readers without a primary went to %s", got)
	}
	if st := g.srv.Stats(); st.FellBack != 0 {
		t.Errorf("%d fell back", st.FellBack)
	}
}

// A node that was removed from its group has nobody wait for a replica, and tells strangers nothing of the others: not
// who waits already, and not where the routes still name a primary that answers this node no more.
func TestRemovedNodeAnswersAtOnce(t *testing.T) {
	var removed atomic.Bool
	g := newGroup(t, func(c *Config) {
		c.Rules, c.ConnectWait, c.Removed = trustAll, time.Minute, removed.Load
		c.Backend = func(context.Context, ag.ReplicaID, BackendHello) (net.Conn, error) {
			return nil, errors.New("10.0.0.2:5022: n1 is not a member of this group")
		}
	})
	nobody, gone := *fullRoutes(1), *fullRoutes(1)
	nobody.Primary, nobody.WriteOpen, nobody.Targets = "", false, nil
	g.publish(&nobody)
	waits := make(chan error, 1)
	go func() {
		_, err := g.dial(g.rw, "user=postgres")
		waits <- err
	}()
	waitFor(t, "a client waits", func() bool { return g.srv.Stats().Waiting == 1 })
	began := time.Now()
	removed.Store(true)
	failed := []error{<-waits}
	for _, address := range []string{g.rw, g.ro} {
		_, err := g.dial(address, "user=postgres")
		failed = append(failed, err)
	}
	gone.Primary = "b"
	g.publish(&gone)
	_, err := g.dial(g.rw, "user=postgres")
	for _, err := range append(failed, err) {
		if sqlstate(err) != "57P03" || !strings.Contains(err.Error(), "this node was removed from its availability group and serves no sessions") || strings.Contains(err.Error(), "10.0.0.2") {
			t.Errorf("%v", err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("they waited for %v", took)
	}
}

// A replica that leaves the routing list keeps its readers until each is idle, and no longer.
func TestReadersLeaveWithTheList(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.HoldMax = trustAll, 3*time.Second })
	onB, onC := fullRoutes(1), fullRoutes(1)
	onB.ReadList, onC.ReadList = [][]ag.ReplicaID{{"b"}}, [][]ag.ReplicaID{{"c"}}
	g.publish(onB)
	idle, busy, endless := g.mustDial(g.ro, "user=postgres"), g.mustDial(g.ro, "user=postgres"), g.mustDial(g.ro, "user=postgres")
	writer := g.mustDial(g.rw, "user=postgres")
	done, cut := make(chan error, 1), make(chan error, 1)
	go func() { _, err := busy.Exec(context.Background(), "select pg_sleep(0.5)"); done <- err }()
	go func() { _, err := endless.Exec(context.Background(), "select pg_sleep(60)"); cut <- err }()
	waitFor(t, "both run", func() bool { return g.srv.Sessions()[1].State == "active" && g.srv.Sessions()[2].State == "active" })
	g.publish(onC)
	waitFor(t, "the idle one is gone", func() bool { return len(g.srv.Sessions()) < 4 })
	if _, err := idle.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" {
		t.Errorf("idle: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("what ran was cut: %v", err)
	}
	if err := <-cut; sqlstate(err) != "57P01" {
		t.Errorf("who does not end: %v", err)
	}
	waitFor(t, "no reader is on a replica that was taken off the list", func() bool { return len(g.srv.Sessions()) == 1 })
	if got := value[string](t, g.mustDial(g.ro, "user=postgres"), "show cluster_name"); got != "c" {
		t.Errorf("a new reader went to %s", got)
	}
	value[string](t, writer, "show cluster_name")
	// Without a primary no list is in force.
	none := fullRoutes(1)
	none.Primary, none.WriteOpen, none.ReadList = "", false, [][]ag.ReplicaID{{"b"}}
	reader := g.mustDial(g.ro, "user=postgres")
	g.publish(none)
	time.Sleep(3 * readerPoll)
	value[string](t, reader, "show cluster_name")
}

// A password that has expired on the primary opens nothing on a replica that has not replayed it. While the primary
// is silent the replica decides.
func TestReadersAreJudgedByThePrimary(t *testing.T) {
	g := newGroup(t, nil)
	g.role("alice", "login password 'secret'")
	stale, err := g.verifier(t.Context(), "b", "alice")
	if err != nil {
		t.Fatal(err)
	}
	g.servers["a"].sql(t, fmt.Sprintf("alter role alice password '%s' valid until '2001-01-01'", stale.Password))
	r := fullRoutes(1)
	r.ReadList = [][]ag.ReplicaID{{"b"}}
	g.publish(r)
	if _, err := g.dial(g.ro, "user=alice password=secret"); sqlstate(err) != "28P01" {
		t.Errorf("on the stale replica: %v", err)
	}
	ask := g.srv.cfg.Verifier
	g.srv.cfg.Verifier = func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
		if id == "a" {
			return Role{}, errors.New("silent")
		}
		return ask(ctx, id, user)
	}
	g.mustDial(g.ro, "user=alice password=secret")
	if !g.srv.logins.PrimarySilent() {
		t.Error("the next reader waits for the silent primary, too")
	}
}

// promoting returns routes of node b before and during its promotion.
func promoting() (before, during *ag.Routes) {
	r := *fullRoutes(1)
	r.Self, r.ReadList = "b", [][]ag.ReplicaID{{"b"}}
	r.Targets[0].Local, r.Targets[1].Local = false, true
	d := *fullRoutes(2)
	d.Self, d.Primary, d.WriteOpen, d.Promoting, d.ReadList = "b", "", false, true, r.ReadList
	d.Targets[0].Local, d.Targets[1].Local, d.Targets[1].Readable = false, true, false
	return &r, &d
}

// A reader whose server is promoted is ended. Its request under way may be executed after the promotion, as a write:
// its error does not say that nothing was committed.
func TestReaderOfAPromotedServer(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.ConnectWait = trustAll, 200*time.Millisecond })
	g.servers["b"].sql(t, "create table if not exists heard(a int)")
	defer g.servers["b"].sql(t, "drop table heard")
	defer g.servers["b"].sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()")
	before, during := promoting()
	g.publish(before)
	idle, busy := g.mustDial(g.ro, "user=postgres"), g.mustDial(g.ro, "user=postgres")
	heard := make(chan error, 1)
	go func() {
		_, err := busy.Exec(context.Background(), "insert into heard select 1 from pg_sleep(60)")
		heard <- err
	}()
	waitFor(t, "it runs", func() bool {
		return slices.ContainsFunc(g.srv.Sessions(), func(x SessionInfo) bool { return x.State == "active" })
	})
	g.publish(during)
	if n := g.srv.CloseReplica("b", ag.ReadOnly, "this replica is being promoted"); n != 2 {
		t.Errorf("%d ended", n)
	}
	if err := <-heard; sqlstate(err) != "08007" {
		t.Errorf("a write under way: %v", err)
	}
	if _, err := idle.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" {
		t.Errorf("idle: %v", err)
	}
	if _, err := g.dial(g.ro, "user=postgres"); sqlstate(err) != "57P03" {
		t.Errorf("a login during the promotion: %v", err)
	}
}

// A reader is placed by the role of its server, which may change until the session is registered. Then it is not
// opened: nothing would end it, and its answers would not be confirmed.
func TestRoleIsLookedAtOnceMore(t *testing.T) {
	g := newGroup(t, nil)
	before, during := promoting()
	after := *during
	after.Primary, after.WriteOpen, after.Promoting = "b", true, false
	for name, r := range map[string]*ag.Routes{"promoting": during, "primary": &after} {
		for _, relayed := range []bool{true, false} {
			g.publish(before)
			x := &session{srv: g.srv, relayed: relayed, intent: ag.ReadOnly, cut: make(chan struct{})}
			x.work.Local = true
			if bad := x.place(); bad != nil {
				t.Fatal(bad)
			}
			g.publish(r)
			if g.srv.activate(nil, x) {
				t.Errorf("%s, relayed %t: a session of a secondary was opened", name, relayed)
				x.forget()
			}
			if bad := x.place(); (bad == nil) == r.Promoting {
				t.Errorf("%s: %v", name, bad)
			}
		}
	}
	g.publish(before)
}

// The routes of the node that sent a reader may be older than those of the node that would serve it. It is refused at
// its placement and, if the copy stops taking readers after that, when the session is registered.
func TestReaderOfAnUnreadableCopy(t *testing.T) {
	g := newGroup(t, nil)
	before, _ := promoting()
	after := *before
	after.Targets = slices.Clone(before.Targets)
	after.Targets[1].Readable = false
	for _, relayed := range []bool{true, false} {
		g.publish(before)
		x := &session{srv: g.srv, relayed: relayed, intent: ag.ReadOnly, cut: make(chan struct{})}
		x.work.Local = true
		if bad := x.place(); bad != nil {
			t.Fatal(bad)
		}
		g.publish(&after)
		if g.srv.activate(nil, x) {
			t.Errorf("relayed %t: a reader was opened on a copy that takes none", relayed)
			x.forget()
		}
		if bad := x.place(); bad == nil {
			t.Error("a reader was placed on a copy that takes none")
		}
	}
	g.publish(before)
}

// A reader that was sent to an open primary is refused once that is started again in its epoch: the rows that it would
// read may not be replicated yet (S6).
func TestReaderOfAPrimaryThatIsNotOpen(t *testing.T) {
	g := newGroup(t, nil)
	r := *fullRoutes(1)
	r.WriteOpen = false
	g.publish(&r)
	for _, intent := range []ag.Intent{ag.ReadOnly, ag.ReadWrite} {
		if bad := (&session{srv: g.srv, relayed: true, intent: intent}).place(); bad == nil {
			t.Errorf("a %s session was placed on a primary that is not open", intent)
		}
	}
	g.publish(fullRoutes(1))
	if bad := (&session{srv: g.srv, relayed: true, intent: ag.ReadOnly}).place(); bad != nil {
		t.Error(bad)
	}
}
