package listener

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// replicas are two real replicas: a, the primary, whose commits wait for a member that does not exist while holds is
// set, and b, its standby. Clients come to near, which is b's node.
type replicas struct {
	t         *testing.T
	near      *group
	self      ag.ReplicaID // of near
	a, b      *server
	bin       string
	timelines []ag.TimelineEntry // of b
	link      *lossyLink         // before a
}

// lossyLink is between a node and its PostgreSQL, and loses what belongs to a COMMIT. A node takes dir for a server's.
type lossyLink struct {
	dir       string
	loses     atomic.Pointer[string] // "answer": what follows the answer to the probe; "request": what follows the probe
	left      atomic.Int64           // "answer bytes", "request bytes": how many more of them pass
	lost      atomic.Bool            // it was
	cuts      atomic.Bool            // answers arrive byte by byte
	to        *server
	listening net.Listener
}

// newLossyLink returns the link before a server.
func newLossyLink(t *testing.T, to *server) *lossyLink {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cotp")
	if err != nil {
		t.Fatal(err)
	}
	l := &lossyLink{dir: dir, to: to}
	if l.listening, err = net.Listen("unix", filepath.Join(dir, socketName)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = l.listening.Close(), os.RemoveAll(dir) })
	go func() {
		for {
			near, err := l.listening.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", filepath.Join(to.dir, socketName))
			if err != nil {
				_ = near.Close()
				continue
			}
			go l.pump(near, far, "request", func(b []byte) int {
				if i := bytes.Index(b, []byte("concat(pg_catalog.pg_current_xact_id_if")); i >= 0 { // in a batch
					return i + bytes.Index(b[i:], []byte{'H', 0, 0, 0, 4})
				}
				return bytes.Index(b, []byte{0, 0, 0x0b, 0x23, 0, 0, 0, 1}) // pg_walfile_name
			})
			go l.pump(far, near, "answer", func(b []byte) int {
				if i := bytes.Index(b, []byte(",000000010")); i >= 0 { // in a batch
					return i + bytes.Index(b[i:], []byte{'3', 0, 0, 0, 4})
				}
				i := bytes.Index(b, []byte("\x00\x00\x00\x180000000")) // what that returns
				if i < 0 {
					return i
				}
				return i + bytes.Index(b[i:], []byte{'Z', 0, 0, 0, 5, 'T'})
			})
		}
	}()
	return l
}

// pump carries bytes. If it is to lose them, nothing passes behind the message in which mark finds something.
func (l *lossyLink) pump(from, to net.Conn, what string, mark func([]byte) int) {
	defer func() { _, _ = from.Close(), to.Close() }()
	b := make([]byte, 1<<16)
	for lost := false; ; {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		part := b[:n]
		which := l.loses.Load()
		if which != nil && *which == what+" bytes" {
			n := min(int64(len(part)), l.left.Load())
			if part = part[:n]; l.left.Add(-n) <= 0 {
				l.lost.Store(true)
			}
		}
		if which != nil && *which == what {
			if i := mark(part); lost {
				part = nil
			} else if i >= 0 {
				var f pgwire.Framer
				end := 0
				for end <= i {
					used, _, _ := f.Next(part[end:])
					end += used
				}
				part, lost = part[:end], true
				l.lost.Store(true)
			}
		}
		if err := l.carry(to, part, what); err != nil {
			return
		}
	}
}

// carry writes bytes, in pieces if that is wanted.
func (l *lossyLink) carry(to net.Conn, b []byte, what string) (err error) {
	for ; len(b) > 1 && err == nil && what == "answer" && l.cuts.Load(); b = b[1:] {
		_, err = to.Write(b[:1])
		time.Sleep(200 * time.Microsecond) // so that it is read alone
	}
	if err == nil {
		_, err = to.Write(b)
	}
	return err
}

func newReplicas(t *testing.T, change ...func(*Config)) *replicas {
	t.Helper()
	far, near := farPrimary(t, change...)
	r := replicasOf(t, near, "b")
	far.servers = near.servers
	return r
}

// replicasOf starts real replicas for the clients of a node, which is that of the replica self.
func replicasOf(t *testing.T, near *group, self ag.ReplicaID) *replicas {
	t.Helper()
	r := &replicas{t: t, near: near, self: self, timelines: []ag.TimelineEntry{{TLI: 1, Epoch: 1}}}
	var err error
	if r.bin, err = postgresBin(); err != nil {
		t.Fatal(err)
	}
	root, err := os.MkdirTemp("/tmp", "cotd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	if os.Geteuid() == 0 {
		uid, gid, err := postgresUser()
		if err == nil {
			err = os.Chown(root, uid, gid)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.a = r.copyOf(servers.list["a"], filepath.Join(root, "a"))
	r.a.args = []string{"-c", "wal_keep_size=64MB"}
	r.start(r.a)
	r.a.sql(t, "create table ledger (key int primary key, deferred boolean default false)",
		"create function pause() returns trigger language plpgsql as 'begin if new.deferred then perform pg_sleep(600); end if; return null; end'",
		"create constraint trigger pauses after insert on ledger deferrable initially deferred for each row execute function pause()")
	r.b = r.copyOf(r.a, filepath.Join(root, "b"))
	r.b.args = []string{"-c", "primary_conninfo=host=" + r.a.dir + " user=postgres", "-c", "wal_retrieve_retry_interval=10ms"}
	r.standby(r.b)
	r.start(r.b)
	r.link = newLossyLink(t, r.a)
	near.servers = map[ag.ReplicaID]*server{"a": {name: "a", dir: r.link.dir}, "b": r.b}
	return r
}

// copyOf returns a server of a copy of a running one.
func (r *replicas) copyOf(s *server, dir string) *server {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), filepath.Join(r.bin, "pg_basebackup"), "-h", s.dir, "-U", "postgres", "-D", dir+"/data", "-c", "fast", "-X", "stream")
	if err := asServer(cmd); err != nil {
		r.t.Fatal(err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return &server{name: filepath.Base(dir), dir: dir}
}

// standby has a server start as a standby.
func (r *replicas) standby(s *server) {
	r.t.Helper()
	if err := os.WriteFile(s.dir+"/data/standby.signal", nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		uid, gid, _ := postgresUser()
		_ = os.Chown(s.dir+"/data/standby.signal", uid, gid)
	}
}

func (r *replicas) start(s *server) {
	r.t.Helper()
	if err := s.start(r.bin); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.kill)
}

// kill ends a server as a crash does.
func (s *server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGQUIT)
	_ = s.cmd.Wait()
}

// holdCommits has commits of a wait for ever, or go on.
func (r *replicas) holdCommits(on bool) {
	r.t.Helper()
	names := ""
	if on {
		names = "nobody"
	}
	r.a.sql(r.t, "alter system set synchronous_standby_names = '"+names+"'", "select pg_reload_conf()")
	waitFor(r.t, "a has the setting", func() bool { return asked[string](r.t, r.a, "show synchronous_standby_names") == names })
}

// asked asks a server directly.
func asked[T any](t *testing.T, s *server, text string) T {
	t.Helper()
	conn, err := s.connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return value[T](t, conn, text)
}

// caughtUp waits until b has replayed what a has flushed.
func (r *replicas) caughtUp() {
	r.t.Helper()
	end := asked[string](r.t, r.a, "select pg_current_wal_flush_lsn()::text")
	waitFor(r.t, "b has everything", func() bool {
		return asked[bool](r.t, r.b, "select pg_last_wal_replay_lsn() >= '"+end+"'")
	})
}

// receiver returns the number of b's process that receives WAL. It is waited for: b may have replayed everything that
// its copy came with before that process is seen.
func (r *replicas) receiver() (pid int) {
	r.t.Helper()
	waitFor(r.t, "b receives WAL", func() bool {
		pid = asked[int](r.t, r.b, "select coalesce(max(pid), 0) from pg_stat_wal_receiver")
		return pid != 0
	})
	return pid
}

// deafen stops what brings b WAL, or lets it go on.
func (r *replicas) deafen(on bool) {
	r.t.Helper()
	sig := syscall.SIGCONT
	if on {
		sig = syscall.SIGSTOP
	}
	if err := syscall.Kill(r.receiver(), sig); err != nil {
		r.t.Fatal(err)
	}
}

// promote has a die and b lead on a timeline of its own, without telling any listener. deaf is whether b has heard
// nothing of late.
func (r *replicas) promote(deaf bool) {
	r.t.Helper()
	pid, replays := 0, 0
	const startup = "select pid from pg_stat_activity where backend_type = 'startup'"
	if deaf {
		pid, replays = r.receiver(), asked[int](r.t, r.b, startup)
	}
	r.a.kill()
	if deaf {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil { // what is in its socket is lost with the node
			r.t.Fatal(err)
		}
		waitFor(r.t, "b has started all its processes again", func() bool {
			conn, err := r.b.connect(r.t.Context(), "postgres")
			if err != nil {
				return false
			}
			defer func() { _ = conn.Close(context.Background()) }()
			now := 0
			return conn.QueryRow(r.t.Context(), startup).Scan(&now) == nil && now != replays
		})
	}
	xmax := "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	var x ag.Xids
	x.Kept = uint64(asked[int64](r.t, r.b, xmax))
	r.b.sql(r.t, "select pg_promote()")
	x.Lost = uint64(asked[int64](r.t, r.b, xmax))
	r.timelines = append(r.timelines, ag.TimelineEntry{TLI: 2, Parent: 1, Epoch: 2, Xids: x})
}

// succeeds promotes b, which has everything or is deaf, and has others execute as many transactions there.
func (r *replicas) succeeds(deaf bool, strangers int, spoil func(*replicas)) {
	r.t.Helper()
	if !deaf {
		r.caughtUp()
	}
	r.promote(deaf)
	for i := range strangers {
		r.b.sql(r.t, "insert into ledger values ("+strconv.Itoa(100+i)+")")
	}
	if spoil != nil {
		spoil(r)
	}
}

// underWay waits until a COMMIT is lost on the link, has its deferred trigger sleep, or waits for members.
func (r *replicas) underWay(lost, deferred bool, rows int) {
	r.t.Helper()
	switch {
	case lost:
		waitFor(r.t, "it is lost", r.link.lost.Load)
		r.executed(rows)
	case deferred:
		r.holding("PgSleep")
	default:
		r.holding("SyncRep")
	}
}

// leads tells the node of the clients that b leads.
func (r *replicas) leads(open bool) {
	routes := pairRoutes(2, r.self, "b")
	routes.Timelines, routes.WriteOpen = r.timelines, open
	r.near.publish(routes)
	if r.self == "a" {
		r.near.srv.CloseReplica("a", ag.ReadWrite, "this node is not the primary any more")
	}
	r.near.srv.CloseEpoch(2, "the primary has changed")
}

// How a client sends a COMMIT.
const (
	bySimple  = "a Query"
	byUnnamed = "an unnamed statement"
	byNamed   = "a prepared statement"
)

// preparesCommit has a session prepare what sendsCommit executes by its name.
func preparesCommit(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if _, err := conn.Prepare(t.Context(), "the_commit", "commit"); err != nil {
		t.Fatal(err)
	}
}

// sendsCommit sends a COMMIT and returns what the client hears.
func sendsCommit(conn *pgx.Conn, how string) <-chan string {
	done := make(chan string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var tag pgconn.CommandTag
		var err error
		switch how {
		case byUnnamed:
			res := conn.PgConn().ExecParams(ctx, "commit", nil, nil, nil, nil).Read()
			tag, err = res.CommandTag, res.Err
		case byNamed:
			res := conn.PgConn().ExecPrepared(ctx, "the_commit", nil, nil, nil).Read()
			tag, err = res.CommandTag, res.Err
		default:
			var all []*pgconn.Result
			if all, err = conn.PgConn().Exec(ctx, "COMMIT;").ReadAll(); err == nil {
				tag = all[0].CommandTag
			}
		}
		var pg *pgconn.PgError
		switch {
		case errors.As(err, &pg):
			done <- fmt.Sprintf("%s %s %c %s", pg.Severity, pg.Code, conn.PgConn().TxStatus(), pg.Message)
		case err != nil:
			done <- err.Error()
		default:
			done <- fmt.Sprintf("%s %c", tag, conn.PgConn().TxStatus())
		}
	}()
	return done
}

// holding waits until a session of a waits in its COMMIT.
func (r *replicas) holding(event string) {
	r.t.Helper()
	waitFor(r.t, "the COMMIT is under way", func() bool {
		return asked[bool](r.t, r.a, "select exists (select from pg_stat_activity where wait_event = '"+event+"' and lower(query) like 'commit%')")
	})
}

// executed waits until a has executed a COMMIT that has arrived there, and has so many rows by it.
func (r *replicas) executed(rows int) {
	r.t.Helper()
	waitFor(r.t, "what is not lost is executed", func() bool { return asked[int](r.t, r.a, "select count(*)::int from ledger where key = 1") == rows })
	time.Sleep(50 * time.Millisecond) // its answer arrives
}

// rows returns how many rows of the ledger the new primary has with that key.
func (r *replicas) rows(key int) int {
	return asked[int](r.t, r.b, "select count(*)::int from ledger where key = "+strconv.Itoa(key))
}

// The outcome of a COMMIT whose server was lost is proved by the new primary.
func TestCommitInDoubt(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes two minutes: set COTERIE_LONG=1")
	}
	const committed, lost, unknown = "COMMIT I", "ERROR 40001 I", "FATAL 08007"
	for _, c := range []struct {
		name     string
		how      string
		deaf     bool   // b does not get the COMMIT
		value    string // of the row: deferred, so that the COMMIT is being executed, or not, so that it waits for members
		loses    string // what the link to a loses: then a does not wait
		stranger int    // transactions of others on b before it is open
		shut     bool   // b leads for a while before it is open
		spoil    func(*replicas)
		want     string
		rows     int
	}{
		{name: "committed", value: "false", want: committed, rows: 1},
		{name: "committed, extended", how: byUnnamed, value: "false", want: committed, rows: 1},
		{name: "committed, prepared", how: byNamed, value: "false", want: committed, rows: 1},
		{name: "committed, prepared, and the answer is lost", how: byNamed, value: "false", loses: "answer", want: committed, rows: 1},
		{name: "lost on its way, prepared", how: byNamed, value: "false", loses: "request", want: lost},
		{name: "not executed, prepared", how: byNamed, value: "true", want: lost},
		{name: "not replicated, prepared, and its number is another one's", how: byNamed, value: "false", deaf: true, stranger: 20, want: lost},
		{name: "committed, and the new primary opens late", value: "false", shut: true, want: committed, rows: 1},
		{name: "committed, and the answer is lost", value: "false", loses: "answer", want: committed, rows: 1},
		{name: "lost on its way", value: "false", loses: "request", want: lost},
		{name: "lost on its way, extended", how: byUnnamed, value: "false", loses: "request", want: lost},
		{name: "not executed", value: "true", want: lost},
		{name: "not executed, extended", how: byUnnamed, value: "true", want: lost},
		{name: "not replicated", value: "false", deaf: true, want: lost},
		{name: "not replicated, and its number is another one's", value: "false", deaf: true, stranger: 20, want: lost},
		{name: "not replicated, its number is another one's, and that is not known", value: "false", deaf: true, stranger: 20, want: unknown, spoil: func(r *replicas) {
			r.timelines[1].Xids.Lost = 0
		}},
		{name: "committed, and the numbers are not known", value: "false", want: unknown, rows: 1, spoil: func(r *replicas) { r.timelines[1].Xids = ag.Xids{} }},
		{name: "committed, and the old server gave numbers again", value: "false", want: unknown, rows: 1, spoil: func(r *replicas) { r.timelines[0].Reused = true }},
		{name: "committed, and the record has other timelines", value: "false", want: unknown, rows: 1, spoil: func(r *replicas) { r.timelines[1].TLI = 3 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newReplicas(t)
			conn := r.near.mustDial(r.near.rw, "user=postgres")
			preparesCommit(t, conn)
			r.near.known()
			r.near.unasked()
			r.holdCommits(c.loses == "")
			r.caughtUp()
			if c.deaf {
				r.deafen(true)
			}
			r.near.do(conn, "begin", "insert into ledger values (1, "+c.value+")")
			r.link.loses.Store(&c.loses)
			heard := sendsCommit(conn, c.how)
			r.underWay(c.loses != "", c.value == "true", c.rows)
			r.succeeds(c.deaf, c.stranger, c.spoil)
			if c.shut {
				r.leads(false)
				select {
				case got := <-heard:
					t.Fatalf("the client hears %q of a primary that is not open", got)
				case <-time.After(300 * time.Millisecond):
				}
			}
			r.leads(true)
			got := <-heard
			if got != c.want && !strings.HasPrefix(got, c.want+" ") {
				t.Errorf("the client hears %q, want %q", got, c.want)
			}
			if n := r.rows(1); n != c.rows {
				t.Errorf("%d rows", n)
			}
			if c.want != unknown {
				r.near.do(conn, "begin", "insert into ledger values (2)", "commit")
				if n := r.rows(2); n != 1 {
					t.Errorf("the session does not go on: %d rows", n)
				}
			}
			t.Log(r.timelines, r.near.srv.Stats().Doubts)
		})
	}
}

// A COMMIT of nothing is answered as one, wherever the session goes on, and leaves no doubt.
func TestCommitOfNothingInDoubt(t *testing.T) {
	for _, how := range []string{bySimple, byUnnamed, byNamed} {
		far, near, link := linkedPrimary(t)
		conn := near.mustDial(near.rw, "user=postgres")
		preparesCommit(t, conn)
		near.known()
		near.unasked()
		near.do(conn, "begin", "select 1")
		what := "answer"
		link.loses.Store(&what)
		heard := sendsCommit(conn, how)
		waitFor(t, "it is lost", link.lost.Load)
		time.Sleep(50 * time.Millisecond)
		shut := *near.routes.Load()
		shut.Primary, shut.WriteOpen = "", false
		near.publish(&shut) // it must not go on at the same server
		far.serverDies()
		waitFor(t, "its server is lost", func() bool { return len(far.srv.Sessions()) == 0 })
		near.dies()
		if got := <-heard; got != "COMMIT I" {
			t.Errorf("%s: the client hears %q", how, got)
		}
		near.shows(conn, map[string]string{"select current_setting('cluster_name')": "b"})
		if got := <-sendsCommit(conn, byNamed); got != "COMMIT I" { // its prepared statement is still there
			t.Errorf("%s: afterwards the client hears %q", how, got)
		}
		if st := near.srv.Stats(); st.Doubts["committed"] != 1 {
			t.Errorf("%s: %v", how, st.Doubts)
		}
		if st := far.srv.Stats(); len(st.Doubts) != 0 { // it is the client's node that knows
			t.Errorf("%s: the node of the lost server counts %v", how, st.Doubts)
		}
	}
}

// The question before a COMMIT is no question to a role that may not ask it. If the right is taken away meanwhile, the
// COMMIT fails as one that could not be executed, and no other one of the session does.
func TestProbeThatMayNotBeAsked(t *testing.T) {
	_, near := farPrimary(t)
	near.role("asker", "login")
	a := near.servers["a"]
	const function = "function pg_catalog.pg_current_xact_id_if_assigned()"
	defer a.sql(t, "grant execute on "+function+" to public")
	for _, before := range []bool{true, false} {
		if before {
			a.sql(t, "revoke execute on "+function+" from public")
		} else {
			a.sql(t, "grant execute on "+function+" to public")
		}
		conn := near.mustDial(near.rw, "user=asker")
		preparesCommit(t, conn)
		near.known()
		near.unasked()
		if !before {
			a.sql(t, "revoke execute on "+function+" from public")
		}
		for i, want := range []string{map[bool]string{true: "COMMIT I", false: "ERROR 42501 I"}[before], "COMMIT I", "COMMIT I"} {
			near.do(conn, "begin", "select 1")
			if got := <-sendsCommit(conn, []string{bySimple, byUnnamed, byNamed}[i]); got != want && !strings.HasPrefix(got, want+" ") {
				t.Errorf("revoked before: %v: COMMIT %d: the client hears %q, want %q", before, i, got, want)
			}
		}
		_ = conn.Close(t.Context())
		waitFor(t, "its session has ended", func() bool { return len(near.srv.Sessions()) == 0 })
	}
}
