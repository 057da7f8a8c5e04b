package listener

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/listener/stmt"
)

func FuzzFollow(f *testing.F) {
	f.Add([]byte{'Q', 0, 0, 0, 11, 'c', 'o', 'm', 'm', 'i', 't', 0}, 3)
	f.Add([]byte{'P', 0, 0, 0, 5, 0, 'B', 0, 0, 0, 4, 'E', 0, 0, 0, 4, 'S', 0, 0, 0, 4}, 1)
	f.Fuzz(func(t *testing.T, stream []byte, size int) {
		size = max(1, size&0xff)
		verdicts := make([]stmt.Verdict, 0, 2)
		for _, n := range []int{len(stream) + 1, size} {
			x := &session{srv: &Server{}}
			x.way.Confirmation.Guarded = true
			x.work.Local, x.work.OnPrimary = true, true
			for rest := stream; len(rest) > 0; {
				used, err := x.way.Follow(&x.work, x, rest[:min(n, len(rest))])
				if err != nil {
					return
				}
				rest = rest[used:]
			}
			v, _ := x.judge()
			verdicts = append(verdicts, v)
		}
		if verdicts[0] != verdicts[1] {
			t.Fatalf("whole %d, in pieces %d", verdicts[0], verdicts[1])
		}
	})
}

// On real sessions: the primary goes away with one request of each kind in progress.
func TestWhatAClientHears(t *testing.T) {
	g := newGroup(t, trusting)
	g.servers["a"].sql(t, "create table if not exists heard(a int)", "truncate heard")
	defer g.servers["a"].sql(t, "drop table heard")
	type heard struct {
		name, want string
		err        <-chan error
	}
	var all []heard
	inFlight := func(name, want string, prepare []string, sql string) {
		conn := g.mustDial(g.rw, "user=postgres")
		sqlOn(t, conn, prepare...)
		ch := make(chan error, 1)
		go func() { _, err := conn.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol); ch <- err }()
		all = append(all, heard{name, want, ch})
	}
	inFlight("autocommit", "08007", nil, "insert into heard select 1 from pg_sleep(60)")
	inFlight("in a transaction", "40001", []string{"begin"}, "insert into heard select 2 from pg_sleep(60)")
	inFlight("commit in one request", "08007", nil, "begin; insert into heard select 3 from pg_sleep(60); commit")
	inFlight("a block that commits", "08007", nil, "do $$ begin perform pg_sleep(60); commit; end $$")
	idle := g.mustDial(g.rw, "user=postgres")
	open := g.mustDial(g.rw, "user=postgres")
	sqlOn(t, open, "begin", "insert into heard values (4)")
	waitFor(t, "all run", func() bool {
		n := 0
		for _, x := range g.srv.Sessions() {
			n += b2i(x.State == "active")
		}
		return n == len(all)
	})
	defer g.servers["a"].sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()")
	g.publish(fullRoutes(2))
	g.srv.CloseEpoch(2, "the group has a new primary")
	for _, h := range all {
		if err := <-h.err; sqlstate(err) != h.want {
			t.Errorf("%s: %v, want %s", h.name, err, h.want)
		}
	}
	if _, err := idle.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" {
		t.Errorf("idle: %v", err)
	}
	if _, err := open.Exec(t.Context(), "commit"); sqlstate(err) != "40001" {
		t.Errorf("open transaction: %v", err)
	}
	if n := value[int](t, g.mustDial(g.rw, "user=postgres"), "select count(*) from heard where a in (2, 4)"); n != 0 {
		t.Errorf("%d rows of transactions that were called lost", n)
	}
}

// psycopg 3, if it is installed, reports the three verdicts as docs/connecting.md describes.
func TestPsycopgHears(t *testing.T) {
	python := "python3"
	if dir := os.Getenv("COTERIE_DRIVERS"); dir != "" {
		python = filepath.Join(dir, "venv", "bin", "python3")
	}
	if exec.Command(python, "-c", "import psycopg").Run() != nil {
		t.Skip("NOT RUN: psycopg 3 is not here; make test-drivers installs and runs it")
	}
	const script = `
import psycopg, sys, threading
idle, open_, doubt = (psycopg.connect(sys.argv[1], autocommit=a) for a in (True, False, True))
open_.execute("select 1")
def ask(conn, sql):
    try:
        conn.execute(sql)
        return "answered"
    except psycopg.Error as e:
        return "%s %s closed=%s" % (type(e).__name__, e.sqlstate, conn.closed)
out = [None]
t = threading.Thread(target=lambda: out.__setitem__(0, ask(doubt, "select pg_sleep(60)")))
t.start()
print("ready", flush=True)
sys.stdin.readline()
t.join()
print(ask(idle, "select 1"), flush=True)
print(ask(open_, "select 1"), flush=True)
print(out[0], flush=True)
`
	g := newGroup(t, trusting)
	cmd := exec.Command(python, "-c", script, dsn(g.rw, "user=postgres"))
	in, out, said := converse(t, cmd)
	waitFor(t, "the statement runs", func() bool {
		n := 0
		for _, x := range g.srv.Sessions() {
			n += b2i(x.State == "active")
		}
		return n == 1 && strings.Contains(out.String(), "ready")
	})
	defer g.servers["a"].sql(t, "select pg_terminate_backend(pid) from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()")
	g.publish(fullRoutes(2))
	g.srv.CloseEpoch(2, "the group has a new primary")
	_, _ = in.Write([]byte("\n"))
	want := []string{"AdminShutdown 57P01 closed=True", "SerializationFailure 40001 closed=True", "TransactionResolutionUnknown 08007 closed=True"}
	waitFor(t, "three answers", func() bool { return strings.Count(out.String(), "\n") == 4 || said.String() != "" })
	if got := strings.Split(strings.TrimSpace(out.String()), "\n")[1:]; !slices.Equal(got, want) {
		t.Errorf("psycopg hears %q %s", got, said.String())
	}
}

// converse starts a program to which the test writes, and reads what it prints and says of errors.
func converse(t *testing.T, cmd *exec.Cmd) (in io.Writer, out, said *lockedBuffer) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, said = &lockedBuffer{}, &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return in, out, said
}

// lockedBuffer is written by a process and read meanwhile.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
