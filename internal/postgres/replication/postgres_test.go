package replication

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/coteriedb/coterie/internal/ag"
)

// pgBin returns the first that COTERIE_PG_BINDIRS lists, else the newest PostgreSQL's directory of programs, or skips
// the test.
func pgBin(t *testing.T) string {
	t.Helper()
	if dirs := filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS")); len(dirs) > 0 { // the first listed is the one to test on
		return dirs[0]
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		if p, err := exec.LookPath("postgres"); err == nil {
			found = []string{p}
		}
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL on this machine")
	}
	slices.Sort(found)
	return filepath.Dir(found[len(found)-1])
}

// server is a PostgreSQL of a test. As root it runs as user postgres, since PostgreSQL refuses root.
type server struct {
	t         *testing.T
	bin, data string
	socket    string
}

// shortDir makes a directory whose sockets have short paths, for the user of the servers.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "cr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if cred := serverUser(t); cred != nil {
		if err := os.Chown(dir, int(cred.Uid), int(cred.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func serverUser(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("root, and there is no user postgres to run servers as")
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (s *server) run(name string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, name), args...)
	cmd.Dir = "/tmp"
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LC_MESSAGES=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: serverUser(s.t)}
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

func (s *server) start(extra string) {
	s.t.Helper()
	opts := "-c listen_addresses='' -c port=5432 -c unix_socket_directories=" + s.socket +
		" -c fsync=off -c max_wal_size=4GB -c log_min_messages=log " + extra
	s.run("pg_ctl", "-D", s.data, "-w", "-t", "60", "-l", s.data+".log", "-o", opts, "start")
	s.t.Cleanup(func() {
		if _, err := os.Stat(filepath.Join(s.data, "postmaster.pid")); err == nil {
			s.run("pg_ctl", "-D", s.data, "-w", "-m", "immediate", "stop")
		}
		if s.t.Failed() {
			log, _ := os.ReadFile(s.data + ".log")
			s.t.Logf("log of %s:\n%s", s.data, log)
		}
	})
}

func (s *server) log() string {
	b, _ := os.ReadFile(s.data + ".log")
	return string(b)
}

// connect opens a session.
func (s *server) connect() *pgconn.PgConn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := pgconn.Connect(ctx, "host="+s.socket+" port=5432 user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	})
	return c
}

// query returns the first column of the rows.
func query(ctx context.Context, c *pgconn.PgConn, sql string) ([]string, error) {
	results, err := c.Exec(ctx, sql).ReadAll()
	var rows []string
	for _, r := range results {
		for _, row := range r.Rows {
			if len(row) > 0 {
				rows = append(rows, string(row[0]))
			}
		}
	}
	return rows, err
}

func mustQuery(t *testing.T, c *pgconn.PgConn, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	rows, err := query(ctx, c, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(rows, ",")
}

// waitFor waits until cond holds, with a deadline for loaded machines.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// pair is a primary and a secondary whose replication goes through a Downstream and an Upstream.
type pair struct {
	t                  *testing.T
	primary, secondary *server
	up                 *Upstream
	down               *Downstream
	upDir, wire        string
	admin              *pgconn.PgConn // session on the primary

	mu    sync.Mutex
	epoch ag.Epoch
}

func newPair(t *testing.T) *pair {
	bin, dir := pgBin(t), shortDir(t)
	p := &pair{t: t, epoch: 1, upDir: filepath.Join(dir, "up"), wire: filepath.Join(dir, "wire")}
	for _, d := range []string{"p", "s", "up"} {
		path := filepath.Join(dir, d)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if cred := serverUser(t); cred != nil {
			if err := os.Chown(path, int(cred.Uid), int(cred.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.primary = &server{t: t, bin: bin, data: filepath.Join(dir, "pd"), socket: filepath.Join(dir, "p")}
	p.secondary = &server{t: t, bin: bin, data: filepath.Join(dir, "sd"), socket: filepath.Join(dir, "s")}
	p.primary.run("initdb", "-D", p.primary.data, "-U", "postgres", "-A", "trust", "--no-sync", "--locale=C")
	p.primary.start("")
	p.admin = p.primary.connect()
	mustQuery(t, p.admin, "SELECT pg_create_physical_replication_slot('cot_s1', true)")
	p.connectAgents()
	p.primary.run("pg_basebackup", "-h", p.upDir, "-p", "5432", "-U", "postgres", "-D", p.secondary.data, "-c", "fast", "-X", "stream", "--no-sync")
	signal := filepath.Join(p.secondary.data, "standby.signal")
	if err := os.WriteFile(signal, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	p.secondary.start(fmt.Sprintf(`-c wal_retrieve_retry_interval=100ms -c "primary_conninfo=host=%s port=5432 user=postgres application_name=coterie" -c primary_slot_name=cot_s1`, p.upDir))
	return p
}

// connectAgents starts both ends, and the stand-in for the endpoint between them.
func (p *pair) connectAgents() {
	t := p.t
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	rows := p.primary.connect()
	p.down = NewDownstream(DownstreamConfig{
		SocketDir: p.primary.socket, Superuser: func() string { return "postgres" },
		Self:       func() PrimaryFacts { return PrimaryFacts{Leading: true, Epoch: p.currentEpoch(), TLI: 1} },
		OldRowGone: func(ctx context.Context, m ag.ReplicaID) error { return rowsGone(ctx, rows, m) },
		Logger:     log.With("side", "primary"),
	})
	p.down.SetEpoch(1, true)
	l, err := net.Listen("unix", p.wire)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { p.down.Handle(ctx, "s1", conn) })
		}
	})
	p.up = NewUpstream(UpstreamConfig{
		Dir: p.upDir, Logger: log.With("side", "secondary"),
		Hello: func() Hello { return Hello{Member: "s1", Copy: "copy-1"} },
	})
	running.Go(func() {
		if err := p.up.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		p.down.Close()
		running.Wait()
	})
	waitFor(t, "the upstream socket", func() bool { return os.Chmod(filepath.Join(p.upDir, socketName), 0o777) == nil })
	p.up.SetSource(p.source())
}

func (p *pair) currentEpoch() ag.Epoch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epoch
}

func (p *pair) source() *Source {
	return &Source{Epoch: p.currentEpoch(), Replica: "p1", Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", p.wire)
	}}
}

func rowsGone(ctx context.Context, c *pgconn.PgConn, m ag.ReplicaID) error {
	for {
		// A query that is cancelled would take the connection with it, which later streams need, too.
		rows, err := query(context.WithoutCancel(ctx), c, fmt.Sprintf("SELECT pid FROM pg_stat_replication WHERE application_name ~ '^cot_%s_[0-9]+$'", m))
		if err != nil || len(rows) == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// stream returns the secondary's WAL stream.
func (p *pair) stream() (Stream, bool) {
	for _, s := range p.down.Streams() {
		if s.Kind == KindWAL && s.Streaming {
			return s, true
		}
	}
	return Stream{}, false
}

// waitFlushed waits until the secondary has flushed all that the primary has.
func (p *pair) waitFlushed() {
	p.t.Helper()
	end, err := ag.ParseLSN(mustQuery(p.t, p.admin, "SELECT pg_current_wal_flush_lsn()"))
	if err != nil {
		p.t.Fatal(err)
	}
	waitFor(p.t, "the secondary to flush "+end.String(), func() bool {
		s, ok := p.stream()
		return ok && s.Flush >= end
	})
}

// TestServers runs the two ends between two real servers: one story, since starting servers is what costs.
func TestServers(t *testing.T) {
	p := newPair(t)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	mustQuery(t, p.admin, "CREATE TABLE t(i int)")
	p.waitFlushed()
	pid, err := strconv.Atoi(mustQuery(t, p.admin, "SELECT pid FROM pg_stat_replication WHERE state = 'streaming'"))
	if err != nil || !p.down.Owns(pid) || p.down.Owns(pid+1) || p.down.Owns(0) {
		t.Errorf("the walsender %d: %v, is owned: %t", pid, err, p.down.Owns(pid))
	}
	if got := mustQuery(t, p.admin, "SELECT application_name FROM pg_stat_replication"); got != "cot_s1_1" {
		t.Fatalf("the walsenders are named %q, want cot_s1_1", got)
	}
	if s, _ := p.stream(); s.Member != "s1" || s.Copy != "copy-1" || s.Epoch != 1 || s.LastFeedback == 0 {
		t.Errorf("stream = %+v", s)
	}
	if st := p.up.Status(); !st.Connected || !st.Answer.OK || st.AnswerFrom != "p1" || st.Received == 0 {
		t.Errorf("upstream status = %+v", st)
	}
	p.testProveAndHold(ctx)
	p.testBurst(ctx)
	p.testSeal(ctx)
	p.testNewEpoch(ctx)
	p.testShutdown(ctx)
}

// testProveAndHold enters synchronous commit, holds the feedback, and sees a commit wait for it.
func (p *pair) testProveAndHold(ctx context.Context) {
	t := p.t
	mustQuery(t, p.admin, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (cot_s1_1)'")
	mustQuery(t, p.admin, "SELECT pg_reload_conf()")
	mustQuery(t, p.admin, "SELECT pg_reload_conf()")
	if err := p.down.Prove(ctx, []ag.ReplicaID{"s1"}); err != nil {
		t.Fatal(err)
	}
	if err := p.down.Prove(ctx, []ag.ReplicaID{"s1", "s2"}); err == nil {
		t.Error("a member without stream was proved")
	}
	waitFor(t, "the walsender to count as synchronous", func() bool {
		return mustQuery(t, p.admin, "SELECT sync_state FROM pg_stat_replication") == "quorum"
	})
	writer := p.primary.connect()
	mustQuery(t, writer, "INSERT INTO t VALUES (1)")
	p.down.HoldFeedback(true)
	committed := make(chan error, 1)
	go func() {
		_, err := query(ctx, writer, "INSERT INTO t VALUES (2)")
		committed <- err
	}()
	waitFor(t, "the commit to wait", func() bool {
		return mustQuery(t, p.admin, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	})
	p.waitFlushed() // a position that is held is known nevertheless
	if err := p.down.Prove(ctx, []ag.ReplicaID{"s1"}); err != nil {
		t.Errorf("prove while held: %v", err)
	}
	select {
	case err := <-committed:
		t.Fatalf("the commit did not wait for held feedback (err %v)", err)
	case <-time.After(300 * time.Millisecond):
	}
	p.down.HoldFeedback(false)
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if s, _ := p.stream(); s.Proven < 2 {
		t.Errorf("proven %d times, want at least 2", s.Proven)
	}
	mustQuery(t, p.admin, "ALTER SYSTEM RESET synchronous_standby_names")
	mustQuery(t, p.admin, "SELECT pg_reload_conf()")
}

// testBurst sends 100 MB of WAL, with proofs on the way.
func (p *pair) testBurst(ctx context.Context) {
	began := time.Now()
	before := p.up.Status().Received
	done := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			if err = p.down.Prove(ctx, []ag.ReplicaID{"s1"}); err == nil && p.up.Status().Received-before > 100<<20 {
				break
			}
		}
		done <- err
	}()
	mustQuery(p.t, p.admin, "SELECT count(pg_logical_emit_message(false, 'burst', repeat('x', 1 << 20))) FROM generate_series(1, 101)")
	if err := <-done; err != nil {
		p.t.Errorf("prove in the burst: %v", err)
	}
	p.waitFlushed()
	p.t.Logf("%d MiB in %v", (p.up.Status().Received-before)>>20, time.Since(began).Round(time.Millisecond))
}

// testSeal seals, sees the secondary receive nothing, and comes back to the same epoch.
func (p *pair) testSeal(ctx context.Context) {
	t := p.t
	if err := p.up.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	reader := p.secondary.connect()
	waitFor(t, "the walreceiver to vanish", func() bool {
		return mustQuery(t, reader, "SELECT count(*) FROM pg_stat_wal_receiver") == "0"
	})
	before := mustQuery(t, reader, "SELECT pg_last_wal_receive_lsn()")
	mustQuery(t, p.admin, "INSERT INTO t VALUES (3)")
	waitFor(t, "the next walreceiver to be held", func() bool { return p.up.Status().Held == 1 })
	noise := strings.Count(p.secondary.log(), "FATAL")
	time.Sleep(700 * time.Millisecond) // seven times wal_retrieve_retry_interval
	if after := mustQuery(t, reader, "SELECT pg_last_wal_receive_lsn()"); after != before {
		t.Errorf("sealed at %s, received up to %s", before, after)
	}
	if n := strings.Count(p.secondary.log(), "FATAL"); n != noise {
		t.Errorf("the held walreceiver logged %d failures", n-noise)
	}
	if _, ok := p.stream(); ok {
		t.Error("the primary still has a stream")
	}
	p.up.SetSource(p.source())
	p.waitFlushed()
}

// testNewEpoch raises the epoch on both sides, the primary's first.
func (p *pair) testNewEpoch(ctx context.Context) {
	t := p.t
	p.mu.Lock()
	p.epoch = 2
	p.mu.Unlock()
	p.down.SetEpoch(2, true)
	if s := p.down.Streams(); len(s) != 0 {
		t.Errorf("streams of the old epoch: %+v", s)
	}
	waitFor(t, "the old epoch to be refused", func() bool { return p.up.Status().Answer.Code == CodeEpoch })
	p.up.SetSource(p.source())
	p.waitFlushed()
	if got := mustQuery(t, p.admin, "SELECT application_name FROM pg_stat_replication"); got != "cot_s1_2" {
		t.Errorf("the walsenders are named %q, want cot_s1_2", got)
	}
	// An ordinary session through the same socket, as pg_rewind opens it.
	c, err := pgconn.Connect(ctx, "host="+p.upDir+" port=5432 user=nobody dbname=other sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	got := mustQuery(t, c, "SELECT current_setting('application_name') || ' ' || current_user || ' ' || current_database()")
	if got != "cot_query_s1 postgres postgres" {
		t.Errorf("the session is %q", got)
	}
	if err := c.Close(ctx); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// testShutdown stops the primary as a planned failover does, finds its last record on the secondary, and promotes that
// while its next walreceiver is held.
func (p *pair) testShutdown(ctx context.Context) {
	t := p.t
	p.primary.run("pg_ctl", "-D", p.primary.data, "-w", "-m", "fast", "stop")
	var end ag.LSN
	for line := range strings.Lines(p.primary.run("pg_controldata", "-D", p.primary.data)) {
		if rest, ok := strings.CutPrefix(line, "Latest checkpoint location:"); ok {
			lsn, err := ag.ParseLSN(strings.TrimSpace(rest))
			if err != nil {
				t.Fatal(err)
			}
			end = lsn
		}
	}
	reader := p.secondary.connect()
	waitFor(t, "the shutdown checkpoint on the secondary", func() bool {
		lsn, err := ag.ParseLSN(mustQuery(t, reader, "SELECT pg_last_wal_replay_lsn()"))
		return err == nil && lsn > end
	})
	if err := p.up.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the next walreceiver to be held", func() bool { return p.up.Status().Held == 1 })
	if got := mustQuery(t, reader, "SELECT pg_promote(true, 20)"); got != "t" {
		t.Errorf("pg_promote = %s", got)
	}
	waitFor(t, "the held connection to be given up", func() bool { return p.up.Status().Held == 0 })
}
