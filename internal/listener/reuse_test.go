package listener

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/counters"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/pool"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// poolGroup is a group whose local server has a pool, and reuses backends if reuse returns true.
func poolGroup(t *testing.T, reuse *atomic.Bool, change func(*Config)) *group {
	t.Helper()
	var g *group
	g = newGroup(t, func(c *Config) {
		c.Rules = trustAll
		c.Fingerprint = func(ctx context.Context, user, database string) (LoginFingerprint, error) {
			conn, err := g.servers["a"].connect(ctx, "postgres")
			if err != nil {
				return LoginFingerprint{}, err
			}
			defer func() { _ = conn.Close(context.Background()) }()
			m, err := login.FingerprintOn(ctx, conn, user, database)
			return LoginFingerprint{Text: m.Text, Exclusive: m.Exclusive, NotReusable: m.NotReusable}, err
		}
		c.Reuse, c.Limits.PoolAhead = reuse.Load, -1
		if change != nil {
			change(c)
		}
	})
	g.srv.pool.Unused, g.srv.pool.Answer = 4*pool.Unused, time.Minute // a busy machine is no reason to lose one
	return g
}

func reusing() *atomic.Bool {
	var on atomic.Bool
	on.Store(true)
	return &on
}

// visit opens a session, calls f on it, and closes it with Terminate. It returns the backend's process.
func (g *group) visit(rest string, f func(*pgx.Conn)) uint32 {
	g.t.Helper()
	conn, err := g.dial(g.rw, rest)
	if err != nil {
		g.t.Fatal(err)
	}
	pid := conn.PgConn().PID()
	if f != nil {
		f(conn)
	}
	_ = conn.Close(context.Background())
	return pid
}

// left waits until the backend of a visit has been pooled or dropped.
func (g *group) left() int {
	g.t.Helper()
	waitFor(g.t, "nothing is on its way", func() bool {
		return g.srv.logins.Taken().Open == 0 && g.srv.Stats().Pool.InProgress == 0
	})
	return g.srv.Stats().Pool.Waiting
}

func one(conn *pgx.Conn) { _, _ = conn.Exec(context.Background(), "select 1") }

// A backend whose client has left serves the next one of the same kind, on both paths, if reuse is on.
func TestBackendIsReused(t *testing.T) {
	for _, path := range []string{PathLoop, PathGoroutines} {
		t.Run(path, func(t *testing.T) {
			t.Setenv(pathEnv, path)
			on := reusing()
			g := poolGroup(t, on, nil)
			g.role("warm", "login")
			first := g.visit("user=warm", one)
			g.left()
			var info SessionInfo
			var key []byte
			second := g.visit("user=warm", func(conn *pgx.Conn) {
				one(conn)
				info, key = g.srv.Sessions()[0], conn.PgConn().SecretKey()
				if got := value[string](t, conn, "select current_setting('coterie.client_addr')"); got != "127.0.0.1" {
					t.Errorf("client_addr is %s", got)
				}
			})
			if first != second || info.Backend != counters.BackendReused || info.PID != first || info.Path != path {
				t.Errorf("backends %d and %d; %+v", first, second, info)
			}
			g.left()
			g.visit("user=warm", func(conn *pgx.Conn) {
				if bytes.Equal(conn.PgConn().SecretKey(), key) {
					t.Error("two sessions have the same cancel key")
				}
			})
			g.left()
			for what, rest := range map[string]string{
				"another name": "user=warm application_name=x", "another setting": "user=warm options='-c work_mem=5MB'", "another role": "user=postgres",
				"another database": "user=warm dbname=template1",
			} {
				if pid := g.visit(rest, one); pid == first {
					t.Errorf("%s: got a backend of other startup parameters", what)
				}
			}
			g.left()
			on.Store(false)
			if pid := g.visit("user=warm", one); pid != first { // it waits still
				t.Errorf("backend %d, want %d", pid, first)
			}
			if n := g.left(); slices.ContainsFunc(g.backends("warm"), func(pid uint32) bool { return pid == first }) {
				t.Errorf("the backend is still there, %d wait", n)
			}
		})
	}
}

// backends returns the processes that serve the role.
func (g *group) backends(user string) (pids []uint32) {
	conn, err := g.servers["a"].connect(context.Background(), "postgres")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, _ := conn.Query(context.Background(), "select pid from pg_stat_activity where usename = $1", user)
	pids, err = pgx.CollectRows(rows, pgx.RowTo[uint32])
	if err != nil {
		g.t.Fatal(err)
	}
	return pids
}

// Where logins follow each other closely, the next one finds a backend that was opened ahead.
func TestBackendIsOpenedAhead(t *testing.T) {
	var off atomic.Bool
	g := poolGroup(t, &off, func(c *Config) { c.Limits.PoolAhead = 0 })
	g.role("warm", "login")
	for range 2 {
		g.visit("user=warm", one)
	}
	if g.left() == 0 {
		t.Fatal("none was opened ahead")
	}
	g.visit("user=warm", func(conn *pgx.Conn) {
		if from := g.srv.Sessions()[0].Backend; from != counters.BackendAhead {
			t.Errorf("served by one that is %s", from)
		}
		if n := value[int](t, conn, "select count(*)::int from pg_stat_activity where pid = pg_backend_pid() and usename = 'warm'"); n != 1 {
			t.Error("its cancel key is of another process")
		}
	})
	if st := g.srv.Stats().Pool; st.Ahead != 1 || st.Reused != 0 {
		t.Errorf("%+v", st)
	}
	g.left()
	waitFor(t, "nobody wants it: it goes", func() bool { return g.left() == 0 && len(g.backends("warm")) == 0 })
}

// A change of the session that DISCARD ALL does not undo ends its backend. Every other change is undone.
func TestWhatASessionLeavesBehind(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("warm", "login")
	g.servers["a"].sql(t, "create table left_behind (id serial, v text)", "grant all on left_behind, left_behind_id_seq to warm")
	defer g.servers["a"].sql(t, "drop table left_behind")
	exec := func(text string) func(*pgx.Conn) {
		return func(conn *pgx.Conn) { _, _ = conn.PgConn().Exec(context.Background(), text).ReadAll() }
	}
	for _, c := range []struct {
		name  string
		keeps bool
		do    func(*pgx.Conn)
	}{
		{"nothing", true, nil},
		{"queries", true, exec("select count(*) from left_behind; select now()")},
		{"a transaction", true, exec("begin; insert into left_behind (v) values ('a;b'), ('set_config(') returning id; commit")},
		{"prepared by the protocol", true, func(conn *pgx.Conn) { one(conn); _, _ = conn.Prepare(context.Background(), "p", "select $1::int") }},
		{"an error", true, exec("select 1/0")},
		{"SET", false, exec("set work_mem = '5MB'")},
		{"SET LOCAL", false, exec("begin; set local my.x = 'y'; commit")},
		{"set_config", false, exec("select set_config('my.x', 'y', false)")},
		{"set_config, hidden", false, exec(`select "set_config"('my.x', 'y', false)`)},
		{"set_config, in comments", false, exec("select /* x */ pg_catalog.set_config/**/ ('my.x', 'y', false)")},
		{"set_config, prepared", false, func(conn *pgx.Conn) {
			_, _ = conn.Exec(context.Background(), "select set_config($1, 'y', false)", "my.x")
		}},
		{"LISTEN", false, exec("listen x")},
		{"a temporary table", false, exec("create temp table t ()")},
		{"an advisory lock", false, exec("select pg_advisory_lock(7)")},
		{"SET ROLE", false, exec("set role none")},
		{"PREPARE", false, exec("prepare q as select 1")},
		{"DO", false, exec("do $$ begin perform set_config('my.x', 'y', false); end $$")},
		{"COPY", false, exec("copy left_behind to stdout")},
		{"an open transaction", false, exec("begin")},
		{"a failed transaction", false, exec("begin; select 1/0")},
		{"no goodbye", false, func(conn *pgx.Conn) { one(conn); _ = conn.PgConn().Conn().(*net.TCPConn).Close() }},
		{"a query too long to be looked at", false, func(conn *pgx.Conn) {
			_, _ = conn.Exec(context.Background(), fmt.Sprintf("select length('%0200000d')", 1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g.srv.pool.Flush("test")
			pid := g.visit("user=warm", c.do)
			g.left()
			waiting := g.srv.Stats().Pool.Waiting == 1
			if waiting != c.keeps {
				t.Fatalf("kept: %t", waiting)
			}
			g.visit("user=warm", func(conn *pgx.Conn) {
				if same := conn.PgConn().PID() == pid; same != c.keeps {
					t.Errorf("the same backend: %t", same)
				}
				if n := value[int](t, conn, "select count(*)::int from pg_prepared_statements where name in ('p', 'q')"); n != 0 {
					t.Error("a prepared statement is left")
				}
				if x := value[*string](t, conn, "select current_setting('my.x', true)"); x != nil {
					t.Errorf("my.x is %q", *x)
				}
				var lastval int
				if err := conn.QueryRow(context.Background(), "select lastval()").Scan(&lastval); sqlstate(err) != "55000" {
					t.Errorf("lastval is %d, %v", lastval, err)
				}
			})
			g.left()
		})
	}
}

// If a new session would begin differently, the pooled backend is not handed out.
func TestWarmBackendsAreOfNow(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	a := g.servers["a"]
	g.role("warm", "login password 'secret'")
	g.role("warmer", "nologin")
	for _, c := range []struct {
		name, change, back string
		refused            string // SQLSTATE of the next login
	}{
		{"its settings", "alter role warm set work_mem = '7MB'", "alter role warm reset work_mem", ""},
		{"settings of the database", "alter database postgres set work_mem = '7MB'", "alter database postgres reset work_mem", ""},
		{"settings of the pair", "alter role warm in database postgres set work_mem = '7MB'", "alter role warm in database postgres reset work_mem", ""},
		{"settings of all", "alter role all set work_mem = '7MB'", "alter role all reset work_mem", ""},
		{"a membership", "grant warmer to warm", "revoke warmer from warm", ""},
		{"its password", "alter role warm password 'other'", "alter role warm password 'secret'", ""},
		{"NOLOGIN", "alter role warm nologin", "alter role warm login", "28000"},
		{"CONNECT", "revoke connect on database postgres from public", "grant connect on database postgres to public", "42501"},
		{"no connections allowed", "alter role warm connection limit 0", "alter role warm connection limit -1", "53300"},
		{"another superuser", "alter role warm superuser", "alter role warm nosuperuser", ""},
		{"the configuration", "select pg_reload_conf()", "select 1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			pid := g.visit("user=warm", one)
			if g.left() != 1 {
				t.Fatal("it does not wait")
			}
			time.Sleep(b2d(c.name == "the configuration", 1100*time.Millisecond)) // pg_conf_load_time of the same second would do, too
			a.sql(t, c.change)
			defer a.sql(t, c.back)
			if c.refused == "" {
				waitFor(t, "another backend", func() bool { return g.visit("user=warm", one) != pid })
				g.left()
				return
			}
			if conn, err := g.dial(g.rw, "user=warm"); sqlstate(err) != c.refused {
				if err == nil {
					_ = conn.Close(context.Background())
				}
				t.Errorf("got %v, want %s", err, c.refused)
			}
		})
	}
}

func b2d(b bool, d time.Duration) time.Duration {
	if b {
		return d
	}
	return 0
}

// A superuser has no pooled backends. When it is no longer one, its next login has none of its former rights.
func TestDemotedSuperuser(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("boss", "login superuser")
	for range 3 {
		g.visit("user=boss", one)
	}
	if n := g.left(); n != 0 {
		t.Fatalf("%d backends of a superuser wait", n)
	}
	g.servers["a"].sql(t, "alter role boss nosuperuser")
	g.visit("user=boss", one)
	g.left()
	g.servers["a"].sql(t, "alter role boss superuser", "alter role boss nosuperuser")
	g.visit("user=boss", func(conn *pgx.Conn) {
		if conn.PgConn().ParameterStatus("is_superuser") != "off" || value[string](t, conn, "show is_superuser") != "off" {
			t.Error("it kept its rights")
		}
		if _, err := conn.Exec(context.Background(), "select * from pg_authid"); sqlstate(err) != "42501" {
			t.Errorf("it reads passwords: %v", err)
		}
	})
}

// DISCARD ALL does not restore a role that is set for the role: such a backend has one client.
func TestSetRoleOfTheRole(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("acts", "nologin")
	g.role("warm", "login in role acts")
	g.servers["a"].sql(t, "alter role warm set role = 'acts'")
	for range 3 {
		g.visit("user=warm", func(conn *pgx.Conn) {
			if who := value[string](t, conn, "select current_user::text"); who != "acts" {
				t.Errorf("acts as %s", who)
			}
		})
		g.left()
	}
	if n := g.srv.Stats().Pool.Reused; n != 0 {
		t.Errorf("%d backends reused", n)
	}
}

// DROP, ALTER and CREATE DATABASE find the database without pooled backends, whichever session sends them.
func TestDropDatabaseUnderWarmBackends(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.srv.pool.Unused = pool.Unused
	g.role("warm", "login")
	for name, drop := range map[string]func(){
		"by the listener": func() { g.visit("user=postgres", func(c *pgx.Conn) { mustExec(t, c, " Drop  Database gone") }) },
		"by the server":   func() { g.servers["a"].sql(t, "drop database gone") },
		"written to hide": func() {
			g.visit("user=postgres", func(c *pgx.Conn) { mustExec(t, c, "/* */ drop /* */ database gone") })
		},
		"renamed, dropped": func() { g.servers["a"].sql(t, "alter database gone rename to away", "drop database away") },
	} {
		if name != "by the listener" && os.Getenv("COTERIE_LONG") == "" {
			continue // PostgreSQL waits for the backend to exit
		}
		g.servers["a"].sql(t, "create database gone")
		g.visit("user=warm dbname=gone", one)
		if g.left() != 1 {
			t.Fatalf("%s: it does not wait", name)
		}
		began := time.Now()
		drop()
		t.Logf("%s: %v", name, time.Since(began))
	}
	if n := g.srv.Stats().Pool.Dropped["database"]; n != 1 {
		t.Errorf("%d backends dropped for the statement", n)
	}
}

func mustExec(t *testing.T, conn *pgx.Conn, text string) {
	t.Helper()
	if _, err := conn.Exec(context.Background(), text); err != nil {
		t.Errorf("%s: %v", text, err)
	}
}

// Pooled backends are dropped when another session needs their connection slot.
func TestWarmBackendsMakeRoom(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("warm", "login connection limit 1")
	first := g.visit("user=warm", one)
	g.left()
	if second := g.visit("user=warm application_name=other", one); second == first {
		t.Error("got a backend of another name")
	}
	if n := g.srv.Stats().Pool.Dropped["room"]; n == 0 {
		t.Error("no backend was given up")
	}
	// The slot may be needed by a login without pooled backends.
	g.servers["a"].sql(t, "alter database template1 connection limit 1")
	defer g.servers["a"].sql(t, "alter database template1 connection limit -1")
	g.left()
	g.visit("user=warm dbname=template1", one)
	g.left()
	g.role("guest", "login replication") // has backends of its own, and the limit holds for it
	g.visit("user=guest dbname=template1", one)
}

// Pooled backends are also dropped for clients of other nodes.
func TestWarmBackendsMakeRoomForOtherNodes(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.srv.pool.Answer = 5 * time.Second // so long a login is tried again
	g.role("warm", "login connection limit 1")
	relaying := newGroup(t, trusting)
	relaying.srv.cfg.Backend = func(ctx context.Context, _ ag.ReplicaID, _ BackendHello) (net.Conn, error) {
		return throughNode(ctx, t, g.srv, g.servers["a"].dir)
	}
	routes := fullRoutes(1)
	routes.Targets[0].Local = false
	relaying.publish(routes)
	g.visit("user=warm", one)
	if n := g.left(); n != 1 {
		t.Fatalf("%d wait", n)
	}
	conn := relaying.mustDial(relaying.rw, "user=warm")
	one(conn)
	if n := g.srv.Stats().Pool.Dropped["room"]; n == 0 {
		t.Error("no backend was given up")
	}
	// Until the wait for dropped backends is over, the login is tried again.
	if _, err := relaying.dial(relaying.rw, "user=warm"); sqlstate(err) != "53300" {
		t.Errorf("beyond the limit: %v", err)
	}
}

// No pooled backend outlives the epoch, a drain, a held login, or the role of its replica.
func TestWarmBackendsEnd(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("warm", "login")
	for name, end := range map[string]func(){
		"epoch":   func() { g.publish(fullRoutes(2)); g.srv.CloseEpoch(2, "test") },
		"drain":   func() { g.srv.Drain(true); g.srv.Drain(false) },
		"hold":    func() { g.srv.HoldNew(true); g.srv.HoldNew(false) },
		"replica": func() { g.srv.CloseReplica("a", ag.ReadOnly, "test") },
		"routes":  func() { g.publish(fullRoutes(g.routes.Load().Epoch + 1)) },
		"gate":    func() { g.gate.Store(openGate()) },
	} {
		first := g.visit("user=warm", one)
		if n := g.left(); n != 1 {
			t.Fatalf("%s: %d wait", name, n)
		}
		end()
		second := g.visit("user=warm", one)
		if same := first == second; same != (name == "gate") {
			t.Errorf("%s: the same backend: %t", name, same)
		}
		g.left()
	}
	// It was in use when the epoch ended, and is not pooled again.
	n := g.srv.Stats().Pool.Returned
	g.visit("user=warm", func(conn *pgx.Conn) { one(conn); g.srv.pool.Flush("test") })
	if g.left() != 0 || g.srv.Stats().Pool.Returned != n {
		t.Error("a backend came back from before")
	}
	g.visit("user=warm", one)
	g.left()
	g.gate.Store(closedGate())
	got := make(chan error, 1)
	go func() {
		conn, err := g.dial(g.rw, "user=warm")
		if err == nil {
			err = conn.Close(context.Background())
		}
		got <- err
	}()
	waitFor(t, "the greeting waits at the gate", func() bool { return g.srv.Stats().Gated > 0 })
	select {
	case err := <-got:
		t.Errorf("a greeting passed the closed gate: %v", err)
	default:
	}
	g.gate.Store(openGate())
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Rules and VALID UNTIL are checked for each login, whatever is pooled.
func TestWarmBackendsOpenNoDoor(t *testing.T) {
	g := poolGroup(t, reusing(), func(c *Config) { c.Rules = nil })
	g.role("warm", "login password 'secret'")
	first := g.visit("user=warm password=secret", one)
	g.left()
	if _, err := g.dial(g.rw, "user=warm password=wrong"); sqlstate(err) != "28P01" {
		t.Errorf("a wrong password: %v", err)
	}
	if second := g.visit("user=warm password=secret", one); second != first {
		t.Error("a right one gets another backend")
	}
	g.left()
	g.servers["a"].sql(t, "alter role warm valid until '2001-01-01'")
	if _, err := g.dial(g.rw, "user=warm password=secret"); sqlstate(err) != "28P01" {
		t.Errorf("an expired password: %v", err)
	}
	g.servers["a"].sql(t, "alter role warm valid until '2100-01-01'")
	g.visit("user=warm password=secret", one)
	g.left()
	rules, err := hba.Parse(strings.NewReader("host all warm all reject\n"))
	if err != nil {
		t.Fatal(err)
	}
	g.srv.SetRules(rules)
	if _, err := g.dial(g.rw, "user=warm password=secret"); sqlstate(err) != "28000" {
		t.Errorf("a rule rejects: %v", err)
	}
}

// The pool is small, and a backend that has died is not handed out.
func TestWarmBackendsAreBounded(t *testing.T) {
	g := poolGroup(t, reusing(), nil)
	g.role("warm", "login")
	var all []*pgx.Conn
	for range pool.PerKind + 3 {
		conn, err := g.dial(g.rw, "user=warm")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, conn)
	}
	for _, conn := range all {
		_ = conn.Close(context.Background())
	}
	if n := g.left(); n != pool.PerKind {
		t.Errorf("%d wait, want %d", n, pool.PerKind)
	}
	g.servers["a"].sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'warm'")
	waitFor(t, "they are gone", func() bool { return len(g.backends("warm")) == 0 })
	g.visit("user=warm", func(conn *pgx.Conn) {
		if n := value[int](t, conn, "select 1"); n != 1 {
			t.Error(n)
		}
	})
	g.left()
	old := g.visit("user=warm", one)
	g.left()
	g.srv.pool.Oldest = 0
	if pid := g.visit("user=warm", one); pid != old {
		t.Errorf("backend %d, want %d", pid, old)
	}
	g.left()
	if pid := g.visit("user=warm", one); pid == old {
		t.Error("an old backend serves on")
	}
}
