package seeding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// serverDir finds PostgreSQL's binaries, or skips the test with the reason.
func serverDir(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for i, dir := range filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS")) { // the first listed wins
		found = slices.Insert(found, i, filepath.Join(dir, "postgres"))
	}
	if p, err := exec.LookPath("postgres"); err == nil {
		found = append(found, p)
	}
	if len(found) == 0 {
		t.Skip("no PostgreSQL server is installed (apt install postgresql)")
	}
	return filepath.Dir(found[0])
}

// serverUser returns the user that servers run as: PostgreSQL refuses root. Nil: the user of the test.
func serverUser(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("running as root, and there is no user postgres to run servers as")
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// bed is a short directory that the server's user owns, with what runs in it.
type bed struct {
	bin string
	as  *syscall.Credential
	dir string

	stops map[string]func() // of the servers, by their sockets
}

// stop shuts a server down in order.
func (b *bed) stop(sock string) { b.stops[sock]() }

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{bin: serverDir(t), as: serverUser(t), stops: map[string]func(){}}
	dir, err := os.MkdirTemp("/tmp", "cotseed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b.dir = dir
	b.give(t, dir)
	return b
}

// give makes a tree the server user's.
func (b *bed) give(t *testing.T, dir string) {
	t.Helper()
	if b.as == nil {
		return
	}
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, int(b.as.Uid), int(b.as.Gid)))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (b *bed) command(t *testing.T, name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(filepath.Join(b.bin, name), args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.as}
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, out
}

// start runs a server on data with its socket in a directory of its own, and returns that directory.
func (b *bed) start(t *testing.T, data string, settings ...string) string {
	t.Helper()
	sock, err := os.MkdirTemp(b.dir, "s")
	if err != nil {
		t.Fatal(err)
	}
	b.give(t, sock)
	args := []string{"-D", data, "-k", sock, "-c", "listen_addresses=", "-c", "port=5432", "-c", "restart_after_crash=off"}
	for _, s := range settings {
		args = append(args, "-c", s)
	}
	cmd, out := b.command(t, "postgres", args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	b.stops[sock] = stop
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			t.Logf("server on %s:\n%s", data, out)
		}
	})
	waitFor(t, "the server on "+data, func() error {
		_, err := b.query(t, sock, "SELECT 'up'")
		return err
	})
	return sock
}

func (b *bed) query(t *testing.T, sock, sql string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, "host="+sock+" port=5432 user=postgres dbname=postgres sslmode=disable")
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	var s string
	err = c.QueryRow(ctx, sql, pgx.QueryExecModeSimpleProtocol).Scan(&s)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return s, err
}

func (b *bed) must(t *testing.T, sock, sql string) string {
	t.Helper()
	s, err := b.query(t, sock, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func waitFor(t *testing.T, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s: %v", what, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// source makes a cluster with rows in it, a tablespace and settings of its own, and starts it.
func (b *bed) source(t *testing.T) string {
	t.Helper()
	data := filepath.Join(b.dir, "source")
	initdb, out := b.command(t, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-k", "-N", "-E", "UTF8", "--locale=C", "--no-instructions")
	if err := initdb.Run(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	sock := b.start(t, data, "fsync=off", "wal_level=replica", "log_directory=log")
	space := filepath.Join(b.dir, "space")
	if err := os.Mkdir(space, 0o700); err != nil {
		t.Fatal(err)
	}
	b.give(t, space)
	for _, sql := range []string{
		"CREATE TABLESPACE side LOCATION '" + space + "'",
		"ALTER SYSTEM SET work_mem = '7MB'",
		"ALTER SYSTEM SET primary_conninfo = 'host=/nowhere'",
		"CREATE TABLE t AS SELECT i, md5(i::text) AS x FROM generate_series(1, 50000) i",
		"CREATE TABLE aside TABLESPACE side AS SELECT i FROM generate_series(1, 1000) i",
		"CREATE TABLE marked AS SELECT 'flip-this-byte-0123456789' AS x",
		"CREATE UNLOGGED TABLE gone AS SELECT 1 AS i",
	} {
		b.must(t, sock, sql)
	}
	return sock
}

const sums = "SELECT (SELECT count(*) || ' ' || sum(hashtext(x)::bigint) FROM t) || ' ' || (SELECT sum(i) FROM aside)"

// mustRefuse checks that PostgreSQL itself will not start what a broken seeding left.
func (b *bed) mustRefuse(t *testing.T, o Options) {
	t.Helper()
	if !tree.HalfSeeded(o.Target, o.StateDir) {
		t.Error("it is not known to be half seeded")
	}
	b.give(t, filepath.Dir(o.Target))
	cmd, out := b.command(t, "postgres", "-D", o.Target, "-k", b.dir, "-c", "listen_addresses=")
	timer := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer timer.Stop()
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "could not") && !strings.Contains(out.String(), "is not a valid data directory") {
		t.Errorf("the server answered %v\n%s", err, out)
	}
}

// mustStream starts the copy as a standby of its source and waits until it has the same rows, later ones included.
func (b *bed) mustStream(t *testing.T, sock string, o Options) (standby string) {
	t.Helper()
	b.give(t, filepath.Dir(o.Target))
	standby = b.start(t, o.Target, "primary_conninfo=host="+sock+" port=5432 user=postgres", "fsync=off")
	b.must(t, sock, "INSERT INTO t SELECT i, 'later' FROM generate_series(1, 10) i")
	want := b.must(t, sock, sums)
	waitFor(t, "the standby to have its source's rows", func() error {
		got, err := b.query(t, standby, sums)
		if err == nil && got != want {
			err = fmt.Errorf("it has %s instead of %s", got, want)
		}
		return err
	})
	if s := b.must(t, standby, "SELECT pg_is_in_recovery()::text"); s != "true" {
		t.Error("the copy is not a standby")
	}
	if s := b.must(t, standby, "SELECT current_setting('work_mem')"); s != "7MB" {
		t.Errorf("work_mem is %s: the source's ALTER SYSTEM is not in the copy", s)
	}
	if s := b.must(t, standby, "SELECT count(*)::text FROM pg_file_settings WHERE name = 'primary_conninfo'"); s != "0" {
		t.Error("the source's primary_conninfo is in the copy")
	}
	place := b.must(t, standby, "SELECT pg_tablespace_location(oid) FROM pg_tablespace WHERE spcname = 'side'")
	if filepath.Dir(place) != filepath.Dir(o.Target) {
		t.Errorf("the tablespace is at %s", place)
	}
	return standby
}

// station is a source's agent: it serves copies of the server over connections that a test can cut.
type station struct {
	*bed
	sock   string
	config source.Config
	source *source.Source
	addr   string
	stop   func() // ends the source that serves; nil before the first
	epoch  atomic.Uint64

	mu    sync.Mutex
	conns []net.Conn
	wrap  func(net.Conn) net.Conn
}

func (b *bed) station(t *testing.T, sock string) *station {
	t.Helper()
	s := &station{bed: b, sock: sock}
	s.epoch.Store(1)
	s.serve(t, source.Config{
		Data: filepath.Join(b.dir, "source"), Connect: connectTo(sock),
		Leads: func() (ag.Epoch, bool) { e := s.epoch.Load(); return ag.Epoch(e), e != 0 },
	})
	return s
}

// serve runs a source of that configuration on a port, in place of the one before: a server has one source, whose
// sweep drops the slots of windows that it does not know.
func (s *station) serve(t *testing.T, c source.Config) {
	t.Helper()
	if s.stop != nil {
		s.stop()
	}
	s.config, s.source = c, source.New(c)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.source.Run(ctx) })
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				s.source.Serve(ctx, "n2", c)
				_ = c.Close()
			})
		}
	})
	s.stop = sync.OnceFunc(func() {
		_ = l.Close()
		cancel()
		running.Wait()
	})
	t.Cleanup(s.stop)
}

// impatient serves copies anew, by a source that waits for databases being created only a little longer than between
// two looks at the progress.
func (s *station) impatient(t *testing.T) {
	t.Helper()
	c := s.config
	c.CreationWait = 500 * time.Millisecond
	s.serve(t, c)
}

func (s *station) dial(ctx context.Context) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrap != nil {
		c = s.wrap(c)
	}
	s.conns = append(s.conns, c)
	return c, nil
}

// cut ends every connection there is.
func (s *station) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

func (s *station) options(t *testing.T) Options {
	t.Helper()
	dir, err := os.MkdirTemp(s.dir, "n")
	if err != nil {
		t.Fatal(err)
	}
	s.give(t, dir)
	return Options{
		Dial: s.dial, Member: "n2", Epoch: 1, Streams: 3,
		Target: filepath.Join(dir, "pgdata"), StateDir: filepath.Join(dir, "state"),
		TablespaceMap: func(oid uint32, _ string) (string, error) {
			return filepath.Join(dir, "ts"+strconv.Itoa(int(oid))), nil
		},
	}
}

// begin makes a server, the agent that serves copies of it, and the options of a copy.
func begin(t *testing.T) (b *bed, sock string, s *station, o Options) {
	t.Helper()
	b = newBed(t)
	sock = b.source(t)
	s = b.station(t, sock)
	return b, sock, s, s.options(t)
}

func TestSeedsARunningServer(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", r)
	if want := b.must(t, sock, "SELECT system_identifier::text FROM pg_control_system()"); r.SystemID != want || r.Timeline != 1 || r.Start >= r.End {
		t.Errorf("result %+v, system identifier %s", r, want)
	}
	b.mustStream(t, sock, o)
}

// TestSeedsWhileTheServerChanges copies while tables and databases come, go and change, and compares every row in the
// end.
func TestSeedsWhileTheServerChanges(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	made := &atomic.Bool{}
	o.Compression, o.MaxRate = "OFF", slowUntil(made)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() { b.disturb(ctx, t, sock) })
	created := false
	o.Progress = func(p progress.Progress) {
		if p.Windows == 1 && p.Done > 1<<20 && !created {
			created = true
			for i, strategy := range b.strategies(t, sock) {
				b.must(t, sock, fmt.Sprintf("CREATE DATABASE made_%d%s", i, strategy))
			}
			made.Store(true)
		}
	}
	r, err := Run(t.Context(), o)
	cancel()
	busy.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if created && r.Progress.Windows < 2 {
		t.Errorf("a database was created by copying files, and one window was thought to be enough: %+v", r.Progress)
	}
	standby := b.mustStream(t, sock, o)
	defer b.mustBeEqual(t, sock, standby, o)
	const all = "SELECT string_agg(relname || ' ' || pg_relation_size(oid), ',' ORDER BY relname) FROM pg_class WHERE relkind = 'r' AND relpersistence = 'p' AND relnamespace = 'public'::regnamespace"
	if got, want := b.must(t, standby, all), b.must(t, sock, all); got != want {
		t.Errorf("tables of the copy: %s\nof the source: %s", got, want)
	}
}

// TestSeesADatabaseThatIsBeingCreated makes the directory of a database whose creation is not committed.
func TestSeesADatabaseThatIsBeingCreated(t *testing.T) {
	t.Parallel()
	b, _, _, o := begin(t)
	made := &atomic.Bool{}
	o.Compression, o.MaxRate = "OFF", slowUntil(made)
	o.Progress = func(p progress.Progress) {
		if p.Windows == 1 && p.Done > 1<<20 && !made.Swap(true) {
			if err := os.Mkdir(filepath.Join(b.dir, "source", "base", "4242424"), 0o700); err != nil {
				t.Error(err)
			}
		}
	}
	r, err := Run(t.Context(), o)
	if err != nil || r.Progress.Windows != 2 {
		t.Errorf("%d windows: %v", r.Progress.Windows, err)
	}
}

// TestSeesACreationOlderThanTheWindow begins with a database that is created by copying files and has its directory and
// its WAL. It is not committed before the window ends, since its commit waits for a standby that does not exist.
func TestSeesACreationOlderThanTheWindow(t *testing.T) {
	t.Parallel()
	b, sock, s, o := begin(t)
	s.impatient(t)
	standbys := func(set string) {
		b.must(t, sock, "ALTER SYSTEM "+set)
		b.must(t, sock, "SELECT pg_reload_conf()::text")
	}
	standbys("SET synchronous_standby_names = 'nobody'")
	strategy := b.strategies(t, sock)[0]
	conn, err := connectTo(sock)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var creating sync.WaitGroup
	creating.Go(func() { _, _ = conn.Exec(t.Context(), "CREATE DATABASE slow"+strategy) }) // a look at the copy shows whether it went well
	waitFor(t, "the creation to wait for its standby", func() error {
		n, err := b.query(t, sock, "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE 'CREATE DATABASE%'")
		if err == nil && n != "1" {
			err = errors.New("it does not")
		}
		return err
	})
	released := false
	o.Progress = func(p progress.Progress) {
		if !released && strings.Contains(p.Waiting, "one more") {
			released = true
			standbys("RESET synchronous_standby_names")
		}
	}
	r, err := Run(t.Context(), o)
	if !released {
		standbys("RESET synchronous_standby_names")
	}
	creating.Wait()
	if err != nil || r.Progress.Windows < 2 {
		t.Fatalf("%d windows: %v", r.Progress.Windows, err)
	}
	standby := b.mustStream(t, sock, o)
	if n := b.must(t, standby, "SELECT count(*)::text FROM pg_database WHERE datname = 'slow'"); n != "1" {
		t.Error("the copy has no such database")
	}
}

// slowUntil is a rate that leaves time for the events that have to happen while a copy is made.
func slowUntil(done *atomic.Bool) func() int64 {
	return func() int64 {
		if done.Load() {
			return 16 << 20
		}
		return 1 << 20
	}
}

func (b *bed) strategies(t *testing.T, sock string) []string {
	if b.must(t, sock, "SHOW server_version_num") < "150000" {
		return []string{""} // it knows but one way: by copying files
	}
	return []string{" STRATEGY file_copy", " STRATEGY wal_log"}
}

func (b *bed) disturb(ctx context.Context, t *testing.T, sock string) {
	for i := 2; ctx.Err() == nil; i++ {
		for _, sql := range []string{
			fmt.Sprintf("CREATE TABLE d%d AS SELECT g, repeat('x', 200) AS y FROM generate_series(1, 2000) g", i),
			"UPDATE t SET x = x || 'u' WHERE i % 7 = " + strconv.Itoa(i%7),
			"VACUUM t",
			fmt.Sprintf("DROP TABLE IF EXISTS d%d", i-2),
			fmt.Sprintf("TRUNCATE d%d", i),
		} {
			if _, err := b.query(t, sock, sql); err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
}

// TestResumes ends the target at several points, damages what it had received, and runs it again.
func TestResumes(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	for _, percent := range []int64{1, 50, 90} {
		t.Run(fmt.Sprintf("killed at %d %%", percent), func(t *testing.T) {
			o := s.options(t)
			o.Compression = "OFF"
			o.MaxRate = func() int64 { return 16 << 20 }
			ctx, kill := context.WithCancelCause(t.Context())
			o.Progress = func(p progress.Progress) {
				if p.Total > 0 && p.Done*100 >= p.Total*percent {
					kill(errors.New("killed"))
				}
			}
			if _, err := Run(ctx, o); err == nil {
				t.Fatal("it ended before it was killed")
			}
			b.mustRefuse(t, o)
			damaged := damage(t, o.Target)
			o.Progress, o.MaxRate = nil, nil
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if most := r.Progress.Total*(100-percent)/100 + 8<<20; r.Progress.Wire > most {
				t.Errorf("%d bytes came over the wire the second time, of %d in all", r.Progress.Wire, r.Progress.Total)
			}
			if damaged != "" && r.Progress.Done == r.Progress.Same {
				t.Error("the damaged file was taken for equal")
			}
			b.mustStream(t, sock, o)
		})
	}
}

// damage flips a byte in the biggest file that was received, and returns its name.
func damage(t *testing.T, target string) string {
	t.Helper()
	var biggest string
	var size int64
	_ = filepath.WalkDir(filepath.Join(target, "base"), func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil && info.Size() > size {
				biggest, size = path, info.Size()
			}
		}
		return nil
	})
	if biggest == "" {
		return ""
	}
	flip(t, biggest, size/2)
	return biggest
}

// flip changes one bit of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var c [1]byte
	if _, err := f.ReadAt(c[:], at); err != nil {
		t.Fatal(err)
	}
	c[0] ^= 1
	if _, err := f.WriteAt(c[:], at); err != nil {
		t.Fatal(err)
	}
}

// TestCutLinksGoOn cuts every connection again and again: the same window continues, and data that arrived is not sent
// again.
func TestCutLinksGoOn(t *testing.T) {
	t.Parallel()
	b, sock, s, o := begin(t)
	o.Compression, o.MaxRate = "OFF", func() int64 { return 24 << 20 }
	ctx, cancel := context.WithCancel(t.Context())
	var cutting sync.WaitGroup
	cutting.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
				s.cut()
			}
		}
	})
	r, err := Run(t.Context(), o)
	cancel()
	cutting.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if r.Progress.Cuts == 0 || r.Progress.Windows != 1 {
		t.Errorf("%d cuts, %d windows", r.Progress.Cuts, r.Progress.Windows)
	}
	if r.Progress.Wire > 2*r.Progress.Total {
		t.Errorf("%d bytes on the wire for %d of files", r.Progress.Wire, r.Progress.Total)
	}
	b.mustStream(t, sock, o)
}

// TestReseedsADivergedCopy brings back a copy that went its own way, by content alone.
func TestReseedsADivergedCopy(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	first, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	standby := b.mustStream(t, sock, o)
	b.must(t, standby, "SELECT pg_promote()::text")
	waitFor(t, "the promotion", func() error {
		if r, err := b.query(t, standby, "SELECT pg_is_in_recovery()::text"); err != nil || r == "true" {
			return fmt.Errorf("in recovery: %s (%w)", r, err)
		}
		return nil
	})
	if n := b.must(t, standby, "SELECT count(*)::text FROM gone"); n != "0" {
		t.Errorf("the unlogged table has %s rows: what is not in WAL does not belong to a copy", n)
	}
	b.must(t, standby, "UPDATE t SET x = 'other' WHERE i % 1000 = 0")
	b.must(t, standby, "CREATE TABLE only_here AS SELECT generate_series(1, 1000) i")
	b.must(t, standby, "DROP TABLE marked")
	b.must(t, standby, "CHECKPOINT")
	b.stop(standby)
	b.must(t, sock, "UPDATE t SET x = 'mine' WHERE i % 990 = 0")

	again, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if again.Copy == first.Copy {
		t.Error("a changed copy kept its identity")
	}
	if again.Progress.Wire > first.Progress.Wire/2 {
		t.Errorf("%d bytes came over the wire for a copy that was nearly equal, %d for a whole one", again.Progress.Wire, first.Progress.Wire)
	}
	standby = b.mustStream(t, sock, o)
	if s := b.must(t, standby, "SELECT count(*)::text FROM pg_class WHERE relname IN ('only_here', 'marked')"); s != "1" {
		t.Errorf("%s of the tables that differed are there", s)
	}
}

// TestRefusesADamagedSource names the page whose checksum is wrong, and takes it where the operator accepts that.
func TestRefusesADamagedSource(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	b.must(t, sock, "CHECKPOINT")
	path := b.must(t, sock, "SELECT pg_relation_filepath('t')")
	f, err := os.OpenFile(filepath.Join(b.dir, "source", path), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 3*8192+4000); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	o := s.options(t)
	var r *wire.RefusedError
	if _, err := Run(t.Context(), o); !errors.As(err, &r) || r.Code != wire.CodeCorrupt || !strings.Contains(err.Error(), "page 3 of "+path) {
		t.Fatalf("error %v", err)
	}
	b.mustRefuse(t, o)
	o.Corrupt = true
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// TestSourceLosesItsRole ends with a clear reason, and the copy cannot be started; the next source sends only the
// missing rest.
func TestSourceLosesItsRole(t *testing.T) {
	t.Parallel()
	b, sock, s, o := begin(t)
	o.Compression, o.MaxRate = "OFF", func() int64 { return 16 << 20 }
	o.Progress = func(p progress.Progress) {
		if p.Total > 0 && p.Done > p.Total/2 {
			s.epoch.Store(2)
			s.cut()
		}
	}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not the primary of epoch 1") {
		t.Fatalf("error %v", err)
	}
	b.mustRefuse(t, o)
	waitFor(t, "the window's slot to go", func() error {
		if n, err := b.query(t, sock, "SELECT count(*)::text FROM pg_replication_slots WHERE slot_name LIKE 'cot_seed%'"); err != nil || n != "0" {
			return fmt.Errorf("%s slots (%w)", n, err)
		}
		return nil
	})
	o.Epoch, o.Progress, o.MaxRate = 2, nil, nil
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Progress.Wire > r.Progress.Total*3/4 {
		t.Errorf("%d of %d bytes came again", r.Progress.Wire, r.Progress.Total)
	}
	b.mustStream(t, sock, o)
}
