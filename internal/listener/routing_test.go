package listener

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/login"
)

var trustAll = []hba.Rule{{Type: hba.TypeHost, Databases: []hba.Name{{Text: "all"}}, Users: []hba.Name{{Text: "all"}}, AnyAddress: true, Method: hba.MethodTrust}}

func trusting(c *Config) { c.Rules = trustAll }

func TestIntentCarriers(t *testing.T) {
	g := newGroup(t, trusting)
	where := func(address, rest string) string {
		conn, err := g.dial(address, "user=postgres "+rest)
		if err != nil {
			t.Fatalf("%s: %v", rest, err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		name := value[string](t, conn, "show cluster_name")
		if said := value[string](t, conn, "select current_setting('coterie.replica')"); said != name {
			t.Errorf("%s: on %s, the session is told %q", rest, name, said)
		}
		return name
	}
	for _, c := range []struct {
		rest     string
		readOnly bool
	}{
		{"", false},
		{"coterie.intent=READ_ONLY", true},
		{"coterie.intent=read_only", true},
		{"coterie.intent=ReadOnly", true},
		{"ApplicationIntent=ReadOnly", true},
		{"applicationintent=read_only", true},
		{"ApplicationIntent=ReadWrite", false},
		{"options='-c coterie.intent=READ_ONLY'", true},
		{"options='-c ApplicationIntent=ReadOnly'", true},
		{"options='--coterie.intent=read-only'", true},
		{"options='-ccoterie.intent=READ_ONLY'", true},
		{"default_transaction_read_only=on", true},
		{"options='-c default-transaction-read-only=t'", true},
		{"default_transaction_read_only=on coterie.intent=READ_WRITE", false},
		{"dbname=postgres@ro", true},
		{"dbname=postgres@ro coterie.intent=READ_WRITE", false},
		{"options='-c coterie.intent=READ_WRITE' coterie.intent=READ_ONLY", true},
	} {
		if got := where(g.rw, c.rest); (got != "a") != c.readOnly {
			t.Errorf("%q went to %s", c.rest, got)
		}
	}
	if got := where(g.ro, "coterie.intent=READ_WRITE"); got == "a" {
		t.Error("the read-only port led to the primary")
	}
	if _, err := g.dial(g.rw, "user=postgres coterie.intent=maybe"); sqlstate(err) != "22023" {
		t.Errorf("unknown intent: %v", err)
	}
}

// Defaults of the role or the database decide where the packet says nothing.
func TestIntentByDefault(t *testing.T) {
	g := newGroup(t, func(c *Config) {
		c.Rules = trustAll
		c.Defaults = func(_ context.Context, user, database string) (map[string]string, error) {
			switch user + " " + database {
			case "postgres postgres":
				return map[string]string{"default_transaction_read_only": "on"}, nil
			case "postgres template1":
				return map[string]string{"default_transaction_read_only": "on", "coterie.intent": "READ_WRITE"}, nil
			}
			return nil, errors.New("not known")
		}
	})
	for rest, primary := range map[string]bool{
		"":                                  false,
		"coterie.intent=READ_WRITE":         true,
		"default_transaction_read_only=off": true,
		"dbname=template1":                  true,
	} {
		conn := g.mustDial(g.rw, "user=postgres "+rest)
		if got := value[string](t, conn, "show cluster_name"); (got == "a") != primary {
			t.Errorf("%q went to %s", rest, got)
		}
	}
}

func TestRoundRobinAndFallback(t *testing.T) {
	g := newGroup(t, trusting)
	count := func(n int) map[string]int {
		seen := make(map[string]int)
		for range n {
			conn := g.mustDial(g.ro, "user=postgres")
			seen[value[string](t, conn, "show cluster_name")]++
			_ = conn.Close(t.Context())
		}
		return seen
	}
	if seen := count(8); seen["b"] != 4 || seen["c"] != 4 {
		t.Errorf("round robin: %v", seen)
	}
	beside := make(map[string]int)
	for range 8 { // a client that opens one of each
		_ = g.mustDial(g.rw, "user=postgres").Close(t.Context())
		conn := g.mustDial(g.ro, "user=postgres")
		beside[value[string](t, conn, "show cluster_name")]++
		_ = conn.Close(t.Context())
	}
	if beside["b"] != 4 || beside["c"] != 4 {
		t.Errorf("round robin beside writers: %v", beside)
	}
	entry := func(want int) {
		t.Helper()
		conn := g.mustDial(g.ro, "user=postgres")
		waitFor(t, "the others are gone", func() bool { return len(g.srv.Sessions()) == 1 })
		if got := g.srv.Sessions()[0].Entry; got != want {
			t.Errorf("entry %d won, want %d", got, want)
		}
		_ = conn.Close(t.Context())
	}
	entry(1)
	r := fullRoutes(1)
	r.Targets[1].Healthy, r.Targets[2].Readable = false, false
	g.publish(r)
	if seen := count(3); seen["a"] != 3 {
		t.Errorf("fallback: %v", seen)
	}
	entry(2)
	st := g.srv.Stats()
	if st.FellBack != 4 || st.Routed[RoutedKey{Replica: "a", Intent: ag.ReadOnly}] != 4 || st.Routed[RoutedKey{Replica: "b", Intent: ag.ReadOnly}] != 9 {
		t.Errorf("stats %+v", st)
	}
	r = fullRoutes(1)
	r.Primary = ""
	g.publish(r)
	if seen := count(2); seen["b"] != 1 || seen["c"] != 1 {
		t.Errorf("without a primary: %v", seen)
	}
}

func TestWaitForPrimary(t *testing.T) {
	g := newGroup(t, func(c *Config) {
		c.ConnectWait = 15 * time.Second
		c.Limits.PreAuth = 3
		c.Limits.PreAuthTime = 2 * time.Second
	})
	g.role("alice", "login password 'secret'")
	none := fullRoutes(1)
	none.Primary, none.WriteOpen = "", false
	g.publish(none)
	const clients = 8 // more than may be unauthenticated at once: those who wait do not count
	errs := make(chan error, clients)
	for i := range clients {
		go func() {
			conn, err := g.dial(g.rw, "user=alice password=secret")
			if err == nil {
				err = conn.Close(context.Background())
			}
			errs <- err
		}()
		waitFor(t, "the login waits", func() bool { return g.srv.Stats().Waiting == i+1 })
	}
	time.Sleep(2200 * time.Millisecond) // longer than the client's own time
	select {
	case err := <-errs:
		t.Fatalf("a login did not wait: %v", err)
	default:
	}
	g.publish(fullRoutes(2))
	for range clients {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestWaitIsBounded(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.ConnectWait = trustAll, 200*time.Millisecond })
	g.publish(&ag.Routes{Epoch: 1, Self: "a"})
	began := time.Now()
	_, err := g.dial(g.rw, "user=postgres")
	if sqlstate(err) != "57P03" || time.Since(began) < 200*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	// a client that gives up frees its place
	g.srv.cfg.ConnectWait = time.Minute
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, _ = pgxConnect(ctx, dsn(g.rw, "user=postgres"))
	waitFor(t, "the abandoned login is gone", func() bool { st := g.srv.Stats(); return st.Waiting == 0 && st.PreAuth == 0 })
}

// A silent primary that a login asks about the role delays the login no longer than the group itself waits.
func TestLoginLeavesASilentPrimary(t *testing.T) {
	asked := make(chan ag.ReplicaID, 10)
	g := newGroup(t, func(c *Config) {
		answers := c.Verifier
		c.ConnectWait, c.Limits.BackendHandshake = 2*time.Minute, time.Minute
		c.Verifier = func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
			asked <- id
			if id == "b" {
				<-ctx.Done()
				return Role{}, ctx.Err()
			}
			return answers(ctx, id, user)
		}
	})
	g.role("alice", "login password 'secret'")
	silent := fullRoutes(1)
	silent.Primary = "b"
	g.publish(silent)
	done := make(chan error, 1)
	go func() {
		conn, err := g.dial(g.rw, "user=alice password=secret")
		if err == nil {
			err = conn.Close(context.Background())
		}
		done <- err
	}()
	if id := <-asked; id != "b" {
		t.Fatalf("%s was asked", id)
	}
	g.publish(fullRoutes(2))
	g.srv.CloseEpoch(2, "the primary has changed")
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the login still waits for the silent primary")
	}
}

// A client that is authenticated and then waits for a session is checked again before it gets one: the password may
// have been changed, the role locked or expired (docs/internals/safety.md, "Reads").
func TestRoleIsCheckedAgainAtHandOut(t *testing.T) {
	for name, change := range map[string]string{
		"password": "alter role alice password 'other'", "nologin": "alter role alice nologin", "expired": "alter role alice valid until '2001-01-01'",
		"nothing": "alter role alice connection limit 100",
	} {
		t.Run(name, func(t *testing.T) {
			var ready atomic.Bool
			tried := make(chan struct{}, 100)
			g := newGroup(t, func(c *Config) {
				reach := c.Backend
				c.ConnectWait = time.Minute
				c.Backend = func(ctx context.Context, id ag.ReplicaID, h BackendHello) (net.Conn, error) {
					select {
					case tried <- struct{}{}:
					default:
					}
					if !ready.Load() {
						return nil, errors.New("not yet")
					}
					return reach(ctx, id, h)
				}
			})
			g.role("alice", "login password 'secret'")
			done := make(chan error, 1)
			go func() {
				conn, err := g.dial(g.rw, "user=alice password=secret")
				if err == nil {
					err = conn.Close(context.Background())
				}
				done <- err
			}()
			select {
			case <-tried: // it has proved itself
			case err := <-done:
				t.Fatalf("login: %v", err)
			}
			g.servers["a"].sql(t, change)
			time.Sleep(login.RoleAge)
			ready.Store(true)
			select {
			case err := <-done:
				if (err == nil) != (name == "nothing") {
					t.Errorf("login: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the login neither succeeded nor failed")
			}
		})
	}
}

func TestHoldNew(t *testing.T) {
	g := newGroup(t, trusting)
	g.srv.HoldNew(true)
	done := make(chan error, 1)
	go func() {
		conn, err := g.dial(g.rw, "user=postgres")
		if err == nil {
			err = conn.Close(context.Background())
		}
		done <- err
	}()
	waitFor(t, "the login is held", func() bool { return g.srv.Stats().Waiting == 1 })
	g.mustDial(g.ro, "user=postgres") // reads continue
	g.srv.HoldNew(false)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestCloseEpoch(t *testing.T) {
	g := newGroup(t, trusting)
	idle := g.mustDial(g.rw, "user=postgres")
	open := g.mustDial(g.rw, "user=postgres")
	busy := g.mustDial(g.rw, "user=postgres")
	reader := g.mustDial(g.ro, "user=postgres")
	if _, err := open.Exec(t.Context(), "begin; create temp table x()"); err != nil {
		t.Fatal(err)
	}
	slow := make(chan error, 1)
	go func() { _, err := busy.Exec(context.Background(), "select pg_sleep(30)"); slow <- err }()
	waitFor(t, "the query runs", func() bool {
		for _, x := range g.srv.Sessions() {
			if x.State == "active" {
				return true
			}
		}
		return false
	})
	r := fullRoutes(2)
	r.Primary, r.Targets[0].Local = "b", false
	g.publish(r)
	if n := g.srv.CloseEpoch(2, "the group has a new primary"); n != 3 {
		t.Errorf("%d sessions cut", n)
	}
	if err := <-slow; sqlstate(err) != "08007" {
		t.Errorf("in flight: %v", err)
	}
	if _, err := idle.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" || !strings.Contains(err.Error(), "new primary") {
		t.Errorf("idle: %v", err)
	}
	if _, err := open.Exec(t.Context(), "commit"); sqlstate(err) != "40001" {
		t.Errorf("open transaction, no commit sent: %v", err)
	}
	value[string](t, reader, "show cluster_name")
	if n := g.srv.CloseEpoch(2, "again"); n != 0 {
		t.Errorf("%d cut again", n)
	}
	fresh := g.mustDial(g.rw, "user=postgres")
	if got := value[string](t, fresh, "show cluster_name"); got != "b" {
		t.Errorf("new session on %s", got)
	}
	if n := g.srv.CloseReplica("b", ag.ReadWrite, "fenced"); n != 1 {
		t.Errorf("%d cut by replica", n)
	}
	waitFor(t, "sessions are gone", func() bool { return g.srv.Stats().Open <= 1 })
}

// Outdated routes open nothing once an epoch was closed, even if the agent publishes the new ones late.
func TestOldRoutesOpenNothing(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.ConnectWait = trustAll, 300*time.Millisecond })
	g.srv.CloseEpoch(2, "the group has a new primary")
	if _, err := g.dial(g.rw, "user=postgres"); sqlstate(err) != "57P03" {
		t.Errorf("old routes: %v", err)
	}
	g.publish(fullRoutes(2))
	g.mustDial(g.rw, "user=postgres")
}

func TestThroughAnotherNode(t *testing.T) {
	// node b: its PostgreSQL is b; primary of epoch 2
	nodeB := newGroup(t, trusting)
	routesB := fullRoutes(2)
	routesB.Self, routesB.Primary = "b", "b"
	routesB.Targets[0].Local, routesB.Targets[1].Local = false, true
	nodeB.publish(routesB)
	nodeB.gate.Store(openGate())

	g := newGroup(t, nil)
	g.role("alice", "login password 'secret'")
	g.remote["b"] = nodeB.srv
	routes := fullRoutes(2)
	routes.Primary, routes.Targets[0].Local = "b", false
	g.publish(routes)

	conn := g.mustDial(g.rw, "user=alice password=secret")
	if got := value[string](t, conn, "show cluster_name"); got != "b" {
		t.Fatalf("ran on %s", got)
	}
	relayed := nodeB.srv.Sessions()
	if len(relayed) != 1 || !relayed[0].Relayed || relayed[0].User != "alice" || relayed[0].Intent != ag.ReadWrite || relayed[0].Epoch != 2 {
		t.Errorf("sessions of b: %+v", relayed)
	}
	// cancel crosses the nodes
	done := make(chan error, 1)
	const long = "select pg_sleep(30), 'across nodes'"
	go func() { _, err := conn.Exec(context.Background(), long); done <- err }()
	nodeB.servers["b"].sleeping(t, long)
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; sqlstate(err) != "57014" {
		t.Errorf("cancelled: %v", err)
	}
	// the gate of the node that runs the session holds
	nodeB.gate.Store(closedGate())
	go func() { _, err := conn.Exec(context.Background(), "select 1"); done <- err }()
	waitFor(t, "the answer is held", func() bool { return nodeB.srv.Stats().Gated > 0 })
	nodeB.gate.Store(openGate())
	if err := <-done; err != nil {
		t.Error(err)
	}
	// its epoch cuts, and the client hears why
	if n := nodeB.srv.CloseEpoch(3, "the group has a new primary"); n != 1 {
		t.Errorf("%d cut", n)
	}
	if _, err := conn.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" || !strings.Contains(err.Error(), "new primary") {
		t.Errorf("after the cut: %v", err)
	}
	// a node that is not primary by its own routes takes no read-write session
	g.srv.cfg.ConnectWait = 200 * time.Millisecond
	routesB = fullRoutes(3)
	routesB.Self = "b"
	nodeB.publish(routesB)
	if _, err := g.dial(g.rw, "user=alice password=secret"); sqlstate(err) != "57P03" {
		t.Errorf("sent to a secondary: %v", err)
	}
}
