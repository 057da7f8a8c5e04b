package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/listener/startup"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// writtenLog returns a reader that relies on a log, and the log as a server has it.
func writtenLog(t *testing.T) (*serverlog.Reader, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(fd), "log")
	_, err1 := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	own, err2 := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
	r := serverlog.NewReader()
	if err := errors.Join(err1, err2, r.Use(own)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = w.Close(), r.Close() })
	r.Rely(heardLog, r.Ask())
	return r, w
}

// onItsOwn returns a guarded session whose server's log is r, and counts what was asked for its answers.
func onItsOwn(t *testing.T, r *serverlog.Reader) (x *session, flushes, leads *atomic.Int64) {
	t.Helper()
	flushes, leads = new(atomic.Int64), new(atomic.Int64)
	s := &Server{log: slog.New(slog.DiscardHandler), life: t.Context(), cfg: Config{
		Log: r, GateHold: time.Minute, Durable: func(context.Context, ag.LSN) error { return nil },
	}}
	start := func(f func()) { go f() }
	s.flushed.Run, s.leads.Run = start, start
	s.flushed.Do = func(context.Context) (ag.LSN, error) { flushes.Add(1); return 1, nil }
	s.leads.Do = func(context.Context) (struct{}, error) { leads.Add(1); return struct{}{}, nil }
	return &session{srv: s, guarded: true, cut: make(chan struct{})}, flushes, leads
}

// commits has the session answer a COMMIT, and reports whether the members were asked.
func commits(t *testing.T, x *session, flushes *atomic.Int64) bool {
	t.Helper()
	before, looked := flushes.Load(), false
	if stake := x.effectAtStake('C', []byte("COMMIT\x00"), &looked); stake != stmt.NoEffect {
		if err := x.confirm(stake); err != nil {
			t.Fatal(err)
		}
	}
	return flushes.Load() > before
}

// heardLog are settings under which a warning is logged.
var heardLog = serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"warning"}, Messages: []string{"C"}}

// A session that reads "confirmed" has its commits confirmed as any other, beside the question who leads.
func TestConfirmedReadsLookAtTheLog(t *testing.T) {
	for name, r := range map[string]*serverlog.Reader{"no log": nil, "a log that is not relied on": serverlog.NewReader()} {
		x, flushes, leads := onItsOwn(t, r)
		x.reads = startup.ReadsConfirmed
		x.requestBegins()
		if !commits(t, x, flushes) || leads.Load() != 1 {
			t.Errorf("%s: the members were asked %d times, who leads %d times", name, flushes.Load(), leads.Load())
		}
	}
	log, w := writtenLog(t)
	x, flushes, leads := onItsOwn(t, log)
	x.reads = startup.ReadsConfirmed
	x.requestBegins()
	x.owed.Store(2) // a pipeline
	if commits(t, x, flushes) || leads.Load() != 1 {
		t.Errorf("the members were asked %d times without need, who leads %d times", flushes.Load(), leads.Load())
	}
	if _, err := w.WriteString("WARNING:  canceling wait for synchronous replication due to user request\n"); err != nil {
		t.Fatal(err)
	}
	if !commits(t, x, flushes) || leads.Load() != 2 {
		t.Errorf("a cancelled wait: the members were asked %d times, who leads %d times", flushes.Load(), leads.Load())
	}
}

// A backend reads its settings again between two requests. So a request that began before the log could be relied on
// may hide each of its commits, the later ones of one text, too.
func TestRequestOfAWeakLog(t *testing.T) {
	log, _ := writtenLog(t)
	x, flushes, _ := onItsOwn(t, log)
	log.Rely(serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"error"}, Messages: []string{"C"}}, log.Ask())
	x.requestBegins()
	x.owed.Store(1)
	log.Rely(heardLog, log.Ask())
	for i := range 3 {
		if !commits(t, x, flushes) {
			t.Errorf("commit %d of the request was not confirmed", i+1)
		}
	}
	x.owed.Store(0)
	x.requestBegins()
	if commits(t, x, flushes) {
		t.Error("a commit of the next request was confirmed without need")
	}
}
