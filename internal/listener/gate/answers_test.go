package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

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

// onItsOwn returns the decisions of a guarded session whose server's log is r.
func onItsOwn(r *serverlog.Reader) *asked {
	return &asked{Answers: Answers{Rules: Rules{Log: r}, Guarded: true}}
}

// asked counts what is asked for the answers of a session.
type asked struct {
	Answers
	flushes, leads int
}

// commits has the session answer a COMMIT, and reports whether the members were asked.
func (a *asked) commits(t *testing.T) bool {
	t.Helper()
	before, looked := a.flushes, false
	if stake := a.AtStake('C', []byte("COMMIT\x00"), &looked); stake != stmt.NoEffect {
		err := a.Confirm(stake, Questions{Durable: func() error { a.flushes++; return nil }, Leads: func() error { a.leads++; return nil }})
		if err != nil {
			t.Fatal(err)
		}
	}
	return a.flushes > before
}

// heardLog are settings under which a warning is logged.
var heardLog = serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"warning"}, Messages: []string{"C"}}

// A session that reads "confirmed" has its commits confirmed as any other, beside the question who leads.
func TestConfirmedReadsLookAtTheLog(t *testing.T) {
	for name, r := range map[string]*serverlog.Reader{"no log": nil, "a log that is not relied on": serverlog.NewReader()} {
		x := onItsOwn(r)
		x.Reads = startup.ReadsConfirmed
		x.RequestBegins()
		if !x.commits(t) || x.leads != 1 {
			t.Errorf("%s: the members were asked %d times, who leads %d times", name, x.flushes, x.leads)
		}
	}
	log, w := writtenLog(t)
	x := onItsOwn(log)
	x.Reads = startup.ReadsConfirmed
	x.RequestBegins()
	if x.commits(t) || x.leads != 1 {
		t.Errorf("the members were asked %d times without need, who leads %d times", x.flushes, x.leads)
	}
	if _, err := w.WriteString("WARNING:  canceling wait for synchronous replication due to user request\n"); err != nil {
		t.Fatal(err)
	}
	if !x.commits(t) || x.leads != 2 {
		t.Errorf("a cancelled wait: the members were asked %d times, who leads %d times", x.flushes, x.leads)
	}
}

// A backend reads its settings again between two requests. So a request that began before the log could be relied on
// may hide each of its commits, the later ones of one text, too.
func TestRequestOfAWeakLog(t *testing.T) {
	log, _ := writtenLog(t)
	x := onItsOwn(log)
	log.Rely(serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"error"}, Messages: []string{"C"}}, log.Ask())
	x.RequestBegins()
	log.Rely(heardLog, log.Ask())
	for i := range 3 {
		if !x.commits(t) {
			t.Errorf("commit %d of the request was not confirmed", i+1)
		}
	}
	x.RequestBegins()
	if x.commits(t) {
		t.Error("a commit of the next request was confirmed without need")
	}
}

// A cancel request may have cut a wait short from before its delivery until a cycle has ended after it with nothing
// under way.
func TestCancelRequestIsSuspected(t *testing.T) {
	log, _ := writtenLog(t)
	x := onItsOwn(log)
	x.RequestBegins()
	if x.commits(t) || x.Canceled() || !x.Unattended() {
		t.Error("confirmed without need")
	}
	delivered := x.CancelStarts()
	if all := x.CycleEnded(false); all || !x.commits(t) || !x.Canceled() || x.Unattended() {
		t.Error("a request that is on its way counts for nothing")
	}
	delivered()
	if !x.commits(t) {
		t.Error("a request that was delivered counts for nothing")
	}
	if all := x.CycleEnded(false); !all || !x.commits(t) {
		t.Error("something was under way")
	}
	x.Clear()
	if x.commits(t) || !x.Canceled() {
		t.Error("the suspicion does not end")
	}
}

// PostgreSQL's own warning counts until the cycle ends.
func TestWarningOfTheSession(t *testing.T) {
	log, _ := writtenLog(t)
	x := onItsOwn(log)
	x.RequestBegins()
	x.Notice([]byte("SWARNING\x00C01000\x00RSyncRepWaitForLSN\x00\x00"))
	if !x.commits(t) {
		t.Error("a warning counts for nothing")
	}
	x.CycleEnded(false)
	x.Notice([]byte("SNOTICE\x00C00000\x00Rother\x00\x00"))
	if x.commits(t) {
		t.Error("it counts for ever")
	}
}

// The block and the errors before an answer decide whether it may have committed something.
func TestWhatIsAtStake(t *testing.T) {
	x := &Answers{Guarded: true, Reads: startup.ReadsDurable}
	looked := false
	stake := func(typ byte, body string) stmt.Effect { return x.AtStake(typ, []byte(body), &looked) }
	x.CommandEnded([]byte("BEGIN\x00"))
	if stake('C', "INSERT 0 1\x00") != stmt.NoEffect || stake('C', "COMMIT\x00") == stmt.NoEffect || stake('D', "") != stmt.NoEffect {
		t.Error("in a block only its end commits")
	}
	x.CommandEnded([]byte("INSERT 0 1\x00"))
	if stake('Z', "T") != stmt.NoEffect || stake('Z', "I") == stmt.NoEffect {
		t.Error("a ReadyForQuery commits what came before it, outside a block")
	}
	if x.Failed(); stake('Z', "I") != stmt.NoEffect {
		t.Error("after an error nothing is committed")
	}
	x.CycleEnded(false)
	if stake('Z', "I") != stmt.NoEffect || stake('C', "INSERT 0 1\x00") == stmt.NoEffect {
		t.Error("the next cycle begins anew")
	}
	if x.Returned(); stake('Z', "I") == stmt.NoEffect {
		t.Error("a function may have written")
	}
	x.InBlock()
	if stake('C', "UPDATE 1\x00") != stmt.NoEffect {
		t.Error("it began in a block")
	}
	if x.Guarded = false; stake('C', "COMMIT\x00") != stmt.NoEffect {
		t.Error("the answers of another node are that node's")
	}
}

// A read that is held waits where each answer is confirmed, until it is canceled. A commit does not.
func TestReadsWaitForMembers(t *testing.T) {
	for _, c := range []struct {
		effect stmt.Effect
		asked  int
	}{{stmt.Reads, 4}, {stmt.EffectOf([]byte("COMMIT")), 1}} {
		x := &Answers{Guarded: true, Reads: startup.ReadsDurable}
		n := 0
		err := x.Confirm(c.effect, Questions{Durable: func() error {
			if n++; n == 4 {
				x.CancelStarts()
			}
			return context.DeadlineExceeded
		}})
		if !errors.Is(err, context.DeadlineExceeded) || n != c.asked {
			t.Errorf("effect %v: asked %d times, %v", c.effect, n, err)
		}
	}
}
