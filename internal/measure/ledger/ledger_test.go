package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/measure/session"
)

// shared is the server that the tests of this package share; one at a time, since some of them stop it.
var shared struct {
	mu     sync.Mutex
	server *pgtest.Server
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// lend returns the shared server for the use of one test, with a ledger prepared on it.
func lend(t *testing.T) (*pgtest.Server, *Ledger) {
	t.Helper()
	shared.mu.Lock()
	t.Cleanup(shared.mu.Unlock)
	if shared.server == nil {
		s, err := pgtest.New()
		if err != nil {
			t.Fatal(err)
		}
		shared.server = s
	}
	l := open(t, t.TempDir())
	for range 2 { // a second time changes nothing
		if err := l.Prepare(t.Context(), shared.server.DSN()); err != nil {
			t.Fatal(err)
		}
	}
	return shared.server, l
}

func exec(t *testing.T, s *pgtest.Server, sql string, args ...any) int64 {
	t.Helper()
	conn, err := session.Open(t.Context(), s.DSN(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	tag, err := conn.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tag.RowsAffected()
}

// writing runs writers until the function it returns is called.
func writing(t *testing.T, l *Ledger, o WriterOptions) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Write(ctx, o) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("write: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

func verify(t *testing.T, l *Ledger, s *pgtest.Server) Verdict {
	t.Helper()
	v, err := l.Verify(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVerify(t *testing.T) {
	s, l := lend(t)
	stop := writing(t, l, WriterOptions{DSN: s.DSN(), Clients: 4, Every: time.Millisecond})
	waitFor(t, "400 rows", func() bool { return l.Progress().Acknowledged >= 400 })
	if err := l.Write(t.Context(), WriterOptions{DSN: s.DSN()}); !errors.Is(err, errWriting) {
		t.Errorf("second Write at the same time: %v", err)
	}
	stop()
	p := l.Progress()
	v := verify(t, l, s)
	if !v.Sound() || v.Acknowledged != p.Acknowledged || v.Unknown+v.Failed != 0 || p.LastAck.IsZero() {
		t.Errorf("untouched: %v, progress %+v", v, p)
	}
	if e := l.clients[0].entries[0]; e.server.timeline != 1 || e.server.started == 0 || !strings.Contains(e.lsn, "/") {
		t.Errorf("first row was acknowledged by %+v at %q", e.server, e.lsn)
	}
	if v := verify(t, open(t, t.TempDir()), s); v.Acknowledged != 0 || !v.Sound() {
		t.Errorf("another ledger sees rows of this one: %v", v)
	}

	insert := `insert into coterie_ledger.entry (run, client, seq, payload) values ($1, $2, $3, $4)`
	add := func(client int, seq int64) { exec(t, s, insert, l.run, client, seq, payload(l.run, client, seq)) }
	failed := put(t, l, 0, 1, 2, opFail, server{})
	add(0, failed)
	put(t, l, 1, 1, 2, opUnknown, server{})
	inDoubt := put(t, l, 1, 1, 0, opIntend, server{})
	add(1, inDoubt)
	add(2, 5) // a second time
	exec(t, s, insert, l.run, 9, 1, []byte("never sent"))
	for client, n := range map[int]int{0: 1, 1: 25} {
		deleted := exec(t, s, `delete from coterie_ledger.entry where run = $1 and client = $2 and seq between 2 and $3`, l.run, client, n+1)
		if deleted != int64(n) {
			t.Fatalf("deleted %d rows, want %d", deleted, n)
		}
	}
	tail := int64(len(l.clients[3].entries))
	exec(t, s, `delete from coterie_ledger.entry where run = $1 and client = 3 and seq = $2`, l.run, tail)
	exec(t, s, `update coterie_ledger.entry set payload = 'x' where run = $1 and client = 3 and seq = 1`, l.run)

	v = verify(t, l, s)
	want := Verdict{
		Acknowledged: p.Acknowledged, Lost: 28, LostInside: 27, Unknown: 2, UnknownPresent: 1, Failed: 1, FailedPresent: 1,
		Duplicates: 1, Unrecorded: 1, LostIDs: v.LostIDs,
	}
	if fmt.Sprint(v) != fmt.Sprint(want) || v.LostInside != want.LostInside || v.Sound() {
		t.Errorf("got  %+v\nwant %+v", v, want)
	}
	if len(v.LostIDs) != 20 || !strings.HasPrefix(v.LostIDs[0], "0/2 (timeline 1, 0/") {
		t.Errorf("lost ids %q", v.LostIDs)
	}

	exec(t, s, `delete from coterie_ledger.entry where run = $1 and client = 9`, l.run)
	exec(t, s, `delete from coterie_ledger.entry where run = $1 and client = 0 and seq = $2`, l.run, failed)
	exec(t, s, `delete from coterie_ledger.entry where run = $1 and client = 2 and seq = 5`, l.run)
	v = verify(t, l, s)
	if v.LastLost.Before(l.epoch.time(l.clients[3].entries[tail-1].done)) || v.SoundSince(v.LastLost) || !v.SoundSince(v.LastLost.Add(time.Microsecond)) || v.Sound() {
		t.Errorf("only rows of before are lost: %+v", v)
	}

	exec(t, s, `drop schema coterie_ledger cascade`)
	if v := verify(t, l, s); v.Lost != v.Acknowledged || v.Lost == 0 {
		t.Errorf("without the table: %v", v)
	}
}

// TestOutageOfARealServer stops the server under its writers and starts it again.
func TestOutageOfARealServer(t *testing.T) {
	s, l := lend(t)
	stop := writing(t, l, WriterOptions{DSN: s.DSN(), Clients: 3})
	waitFor(t, "half a second of rows", func() bool { return l.Progress().Acknowledged >= 300 })
	down := time.Now()
	if err := s.Crash(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // the length of the outage to be measured
	up := time.Now()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	waitFor(t, "an acknowledgement after the start", func() bool { return l.Progress().LastAck.After(started) })
	n := l.Progress().Acknowledged
	waitFor(t, "a second and a half of rows", func() bool { return l.Progress().Acknowledged > n+900 })
	stop()

	o := l.Outage()
	t.Logf("down for %v, start took %v; outage %+v", up.Sub(down), started.Sub(up), o)
	if !o.Ended || o.Longest < up.Sub(down)-100*time.Millisecond || o.Start.After(down.Add(time.Second)) || o.End.Before(up) {
		t.Errorf("outage of %v from %v to %v; the server was down from %v to %v", o.Longest, o.Start, o.End, down, up)
	}
	if o.Reconnects < 3 || o.PerClientMax < o.Longest || o.PerClientP50 > o.PerClientMax {
		t.Errorf("outage %+v", o)
	}
	if o.TimeTo90 >= 0 && o.TimeTo90 < o.Longest { // a busy machine may not come back to the old rate in so short a time
		t.Errorf("90 %% of the rate came %v after the start of an outage of %v", o.TimeTo90, o.Longest)
	}
	v := verify(t, l, s)
	t.Log(v)
	if !v.Sound() || v.Unknown > 3 {
		t.Errorf("after a restart: %v", v)
	}
}

// TestTimeIsUp: a row that is not answered in time is in doubt, and the server finishes it: no cancel request is sent.
func TestTimeIsUp(t *testing.T) {
	s, l := lend(t)
	conn, err := session.Open(t.Context(), s.DSN(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(conn)
	stop := writing(t, l, WriterOptions{DSN: s.DSN(), Timeout: time.Second})
	waitFor(t, "a first row", func() bool { return l.Progress().Acknowledged > 0 })
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table coterie_ledger.entry in share mode`); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a row in doubt", func() bool { return l.Progress().Unknown >= 1 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	n := l.Progress().Acknowledged
	waitFor(t, "an acknowledgement", func() bool { return l.Progress().Acknowledged > n })
	stop()
	waitFor(t, "the row in doubt to arrive", func() bool { return verify(t, l, s).UnknownPresent >= 1 })
	o := l.Outage()
	if o.Errors["timeout"] < 1 || o.Longest < time.Second {
		t.Errorf("longest %v, errors %v", o.Longest, o.Errors)
	}
}

// TestServerSaysNo: an ERROR is a failure, a FATAL that does not prove a rollback is a doubt.
func TestServerSaysNo(t *testing.T) {
	s, l := lend(t)
	exec(t, s, `alter table coterie_ledger.entry add constraint no check (seq <> 2) not valid`)
	exec(t, s, `create function coterie_ledger.die() returns trigger language plpgsql as
		$$ begin perform pg_terminate_backend(pg_backend_pid()); return null; end $$;
		create trigger die before insert on coterie_ledger.entry for each row when (new.seq = 4) execute function coterie_ledger.die()`)
	defer exec(t, s, `drop schema coterie_ledger cascade`)
	stop := writing(t, l, WriterOptions{DSN: s.DSN()})
	waitFor(t, "four rows", func() bool { return l.Progress().Acknowledged >= 4 })
	stop()
	v := verify(t, l, s)
	if v.Failed != 1 || v.Unknown != 1 || v.UnknownPresent != 0 || !v.Sound() {
		t.Errorf("%v", v)
	}
	if o := l.Outage(); o.Errors["23514"] != 1 || o.Errors["57P01"] != 1 || o.Reconnects != 1 {
		t.Errorf("errors %v, reconnects %d", o.Errors, o.Reconnects)
	}
}
