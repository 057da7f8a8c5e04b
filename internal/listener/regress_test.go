package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/offload/offloadtest"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// suite is one of PostgreSQL's own: its directory in the sources, the program that runs it, and its schedule.
type suite struct {
	dir, program, schedule string
}

// direct is the arm without a listener; the others are data paths.
const direct = "direct"

// PostgreSQL's own regression and isolation tests pass through the listener as they pass directly, on each data path.
// The listener runs in this process, so -race checks all of it. scripts/test-regress fetches the sources.
func TestPostgresOwnTests(t *testing.T) {
	source := os.Getenv("COTERIE_PG_TESTS")
	if source == "" {
		t.Skip("NOT RUN: COTERIE_PG_TESTS is not set to src/test of PostgreSQL's sources; make test-regress fetches them")
	}
	for _, s := range []suite{
		{"regress", "test/regress/pg_regress", "parallel_schedule"},
		{"isolation", "test/isolation/pg_isolation_regress", "isolation_schedule"},
	} {
		t.Run(s.dir, func(t *testing.T) {
			want := s.run(t, source, direct)
			if len(want) < 50 {
				t.Fatalf("%d tests ran directly", len(want))
			}
			t.Logf("direct: %s", want)
			for _, path := range []string{PathLoop, PathGoroutines, writingSingly, PathKernel} {
				files, routines := openFiles(t), runtime.NumGoroutine()
				t.Run(path, func(t *testing.T) {
					if path == PathKernel {
						offloadtest.Need(t)
					}
					got := s.run(t, source, path)
					t.Log(got)
					for _, name := range slices.Sorted(maps.Keys(want)) {
						if diff, ran := got[name]; !ran || diff != want[name] {
							t.Errorf("%s differs from direct (ran: %t):\n%s\ndirectly it was:\n%s", name, ran, diff, want[name])
						}
					}
				})
				nothingIsLeft(t, files, routines)
			}
		})
	}
}

// results are the tests that ran, and what each printed unexpectedly; "" for one that passed.
type results map[string]string

func (r results) String() string {
	var failed []string
	for name, diff := range r {
		if diff != "" {
			failed = append(failed, name)
		}
	}
	slices.Sort(failed)
	return fmt.Sprintf("%d tests, not as PostgreSQL expects: %v", len(r), failed)
}

var (
	// Until 15, and from 16 on.
	oldVerdict = regexp.MustCompile(`(?m)^(?:test| {4}) +(\S+) +\.\.\. (ok|FAILED)`)
	newVerdict = regexp.MustCompile(`(?m)^(ok|not ok) +\d+ +[-+] (\S+)`)
)

// run runs the suite against a server of its own.
func (s suite) run(t *testing.T, source, arm string) results {
	t.Helper()
	port := ports.One(t)
	server, err := pgtest.NewWith(pgtest.Options{Port: port, Trust: true, Settings: []string{
		"listen_addresses=127.0.0.1", "port=" + strconv.Itoa(port), "max_prepared_transactions=10", "wal_level=logical",
	}})
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Remove() }()
	if arm != direct {
		port = s.listen(t, server, port, arm)
	}
	dir := filepath.Join(server.Dir(), s.dir)
	copied, err := server.Command("sh", "-c", fmt.Sprintf("cp -r '%s' '%s' && cp '%[3]s'/refint.so '%[3]s'/autoinc.so '%[2]s'",
		filepath.Join(source, s.dir), dir, filepath.Join(server.Bin(), "../lib")))
	if err != nil {
		t.Fatal(err)
	}
	copied.Path = "/bin/sh"
	if out, err := copied.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd, err := server.Command(filepath.Join("../lib/pgxs/src", s.program), "--inputdir=.", "--outputdir="+dir, "--bindir="+server.Bin(), "--dlpath="+dir,
		"--host=127.0.0.1", "--port="+strconv.Itoa(port), "--user=postgres", "--max-concurrent-tests=20", "--schedule="+s.schedule)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PGSSLMODE=disable", "PGGSSENCMODE=disable", "PGISOLATIONTIMEOUT=3600") // for a step, in seconds
	out, err := cmd.CombinedOutput()
	if failed := new(exec.ExitError); err != nil && (!errors.As(err, &failed) || failed.ExitCode() != 1) {
		t.Fatalf("%v\n%s", err, out)
	}
	return readResults(t, dir, string(out))
}

// listen puts a listener in front of the server, without event loops if the path has none, and returns its port.
func (s suite) listen(t *testing.T, server *pgtest.Server, port int, path string) int {
	t.Helper()
	dial := func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, server.DSN()) }
	routes := &ag.Routes{
		Epoch: 1, Self: "a", Primary: "a", WriteOpen: true, ReadList: [][]ag.ReplicaID{{"a"}}, Targets: []ag.Target{{ID: "a", Local: true, Healthy: true}},
	}
	loops, served := 0, PathLoop
	if path == PathGoroutines {
		loops, served = -1, PathGoroutines
	}
	after := 0
	if path == PathKernel {
		after = 1
	}
	srv, err := New(Config{
		offloadAfter: after, NoKernelPath: path != PathKernel,
		ReadWrite: "127.0.0.1:0", Loops: loops, singleWrites: path == writingSingly, Rules: trustAll, Routes: func() *ag.Routes { return routes },
		Backend: func(ctx context.Context, _ ag.ReplicaID, _ BackendHello) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(server.Dir(), ".s.PGSQL."+strconv.Itoa(port)))
		},
		Verifier: func(context.Context, ag.ReplicaID, string) (Role, error) {
			return Role{}, errors.New("nobody is asked")
		},
		Gate: func() time.Duration { return boottime.Now() + time.Hour },
		FlushLSN: func(ctx context.Context) (lsn ag.LSN, err error) {
			conn, err := dial(ctx)
			if err != nil {
				return 0, err
			}
			defer func() { _ = conn.Close(context.Background()) }()
			var text string
			if err = conn.QueryRow(ctx, "select pg_current_wal_flush_lsn()::text").Scan(&text); err == nil {
				lsn, err = ag.ParseLSN(text)
			}
			return lsn, err
		},
		Durable: func(context.Context, ag.LSN) error { return nil }, // no secondary: nothing is waited for
		Fingerprint: func(ctx context.Context, user, database string) (LoginFingerprint, error) {
			conn, err := dial(ctx)
			if err != nil {
				return LoginFingerprint{}, err
			}
			defer func() { _ = conn.Close(context.Background()) }()
			m, err := login.FingerprintOn(ctx, conn, user, database)
			return LoginFingerprint{Text: m.Text, Exclusive: m.Exclusive, NotReusable: m.NotReusable}, err
		},
		FingerprintSession: func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			return login.PrepareFingerprints(ctx, conn, FingerprintStatement)
		},
		Reuse:    func() bool { return true },
		GateHold: time.Hour, // FlushLSN opens a session for each question
		Logger:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		placesAreFree(t, srv)
		if st := srv.Stats(); path == PathKernel {
			t.Logf("%d requests passed inside the kernel, of sessions lent %d times, which came back for %v", st.RelayedByKernel, st.Offloaded, st.KernelPath)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := srv.Stats().Rejected["panic"] + srv.Stats().Cut["panic"]; n > 0 {
			t.Errorf("%d sessions panicked", n)
		}
	})
	rw, _ := srv.Addrs()
	conn, err := pgx.Connect(ctx, dsn(rw[0].String(), "user=postgres"))
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "sessions are served by "+path, func() bool { return srv.Sessions()[0].Path == served })
	_ = conn.Close(ctx)
	return rw[0].(*net.TCPAddr).Port
}

// readResults reads the output of pg_regress, and the differences of failed tests.
func readResults(t *testing.T, dir, out string) results {
	t.Helper()
	r := make(results)
	var failed []string
	note := func(name string, ok bool) {
		if r[name] = ""; !ok {
			failed = append(failed, name)
		}
	}
	for _, m := range oldVerdict.FindAllStringSubmatch(out, -1) {
		note(m[1], m[2] == "ok")
	}
	for _, m := range newVerdict.FindAllStringSubmatch(out, -1) {
		note(m[2], m[1] == "ok")
	}
	diffs, err := os.ReadFile(filepath.Join(dir, "regression.diffs"))
	if err != nil && (len(failed) > 0 || !errors.Is(err, os.ErrNotExist)) {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range failed {
		r[name] = diffOf(strings.ReplaceAll(string(diffs), dir, "DIR"), name)
	}
	return r
}

// diffOf returns the differences of a test without line numbers.
func diffOf(diffs, name string) string {
	_, after, _ := strings.Cut(diffs, "/results/"+name+".out")
	after, _, _ = strings.Cut(after, "\ndiff ")
	var lines []string
	for line := range strings.SplitSeq(after, "\n") {
		if strings.HasPrefix(line, "+") && !strings.HasPrefix(line, "+++") || strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "---") {
			lines = append(lines, line)
		}
	}
	return "failed:\n" + strings.Join(lines, "\n")
}
