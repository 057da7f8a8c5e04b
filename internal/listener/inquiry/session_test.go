package inquiry

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/known"
	"github.com/coteriedb/coterie/internal/listener/offload"
	"github.com/coteriedb/coterie/internal/listener/prospect"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// fake is a session whose server answers at once, unless it is silent.
type fake struct {
	session     Session
	work        underway.Work
	facts       Facts
	ended, left chan struct{}
	at          Point
	carrier     sync.Mutex // one at a time carries it
	silent      bool
	reply       []byte
	sent        int
	wake        func() // nil: it looks at once
	asFacts     func() // when its facts are asked for
}

func newFake(rows ...[]string) *fake {
	f := &fake{ended: make(chan struct{}), left: make(chan struct{}), at: Point{Between: true}}
	f.reply = told(append(rows, []string{"user", "ann"})...)
	f.facts = Facts{Process: uint32(os.Getpid()), Ended: f.ended, Left: f.left}
	f.work.Local, f.work.Rules = true, &underway.Rules{Continuity: func() bool { return true }}
	f.work.Known.Follows = true
	f.work.Status.Store('I')
	return f
}

func (f *fake) Inquiry() *Session        { return &f.session }
func (f *fake) Underway() *underway.Work { return &f.work }
func (f *fake) Facts() Facts {
	if f.asFacts != nil {
		f.asFacts()
	}
	return f.facts
}

func (f *fake) Wake() {
	if f.wake != nil {
		f.wake()
		return
	}
	f.look()
}

// look is what the carrier of the session does when it is woken.
func (f *fake) look() {
	f.carrier.Lock()
	defer f.carrier.Unlock()
	f.session.Ask(&f.work, f.at, func([]byte) error { f.sent++; return nil })
	if f.session.Answering() && !f.silent {
		f.answer()
	}
}

// answer is the answer of the server.
func (f *fake) answer() {
	b := f.reply
	if _, _, err := f.session.Take(b, func(map[string]string, []byte) error { return nil }); err != nil {
		panic(err)
	}
}

// told is the answer of a server, with rows of up to four columns.
func told(rows ...[]string) []byte {
	b := pgwire.AppendMessage(pgwire.AppendMessage(nil, '1', nil), '2', nil)
	for _, row := range rows {
		body := []byte{0, 4}
		for i := range 4 {
			var value string
			if i < len(row) {
				value = row[i]
			}
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(value))), value...)
		}
		b = pgwire.AppendMessage(b, 'D', body)
	}
	return pgwire.AppendMessage(pgwire.AppendMessage(b, 'C', []byte("SELECT 1\x00")), 'Z', []byte{'I'})
}

// TestRead holds why a session cannot be moved, and that its server is asked only where the answer may matter.
func TestRead(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *fake)
		rows   [][]string
		why    string
		sent   int
	}{
		{"idle", func(*fake) {}, nil, "", 1},
		{"of no known client", func(f *fake) { f.facts.Immovable = "its client is not known" }, nil, "its client is not known", 0},
		{"a stream", func(f *fake) { f.work.Streams = true }, nil, "it is a session of logical replication", 0},
		{"a stream that has not begun", func(f *fake) { f.work.Replicates = true }, nil, "it is a session of logical replication", 0},
		{"a text shows it", func(f *fake) { f.follow("load 'x'") }, nil, "it has loaded a library", 0},
		{"being opened", func(f *fake) { f.at.Opening = true }, nil, "it was being opened when its state was to be read", 0},
		{"in the middle of an answer", func(f *fake) { f.at.Between = false }, nil, Busy, 0},
		{"in the middle of a request", func(f *fake) { f.work.Midway = true }, nil, Busy, 0},
		{"busy", func(f *fake) { f.work.Owed.Store(1) }, nil, Busy, 0},
		{"in a transaction", func(f *fake) { f.work.Status.Store('T') }, nil, Busy, 0},
		{"its server refuses", func(*fake) {}, [][]string{{"refusal", "it holds an advisory lock"}}, "it holds an advisory lock", 1},
		{"its unnamed statement waits", func(f *fake) { f.work.Requests.Forwarded('P', []byte("\x00select $1\x00\x00\x00")) }, nil, prospect.Unnamed, 1},
		{"has ended", func(f *fake) { f.silent = true; close(f.ended) }, nil, "", 1},
		{"has left", func(f *fake) { f.silent = true; close(f.left) }, nil, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(c.rows...)
			c.change(f)
			st, why := Read(t.Context(), f)
			if !strings.Contains(why, c.why) || (why == "") != (c.why == "") || f.sent != c.sent {
				t.Errorf("%q after %d questions, want %q after %d", why, f.sent, c.why, c.sent)
			}
			if has := st != nil && st.User == "ann"; has != (c.sent == 1 && !f.silent) {
				t.Errorf("its state is %+v", st)
			}
		})
	}
}

// follow has the client send a query.
func (f *fake) follow(text string) {
	f.work.Lock()
	defer f.work.Unlock()
	f.work.Follow('Q', []byte(text+"\x00"), true, true)
}

// TestReadIsBounded holds that a silent server is waited for only as long as the caller allows, that its question is
// then not asked any more if it was not, and that the next one waits for the answer to the one before.
func TestReadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.silent = true
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, why := Read(short, f); why != tooLate || !f.session.Answering() {
			t.Errorf("%q", why)
		}
		why := make(chan string)
		go func() {
			_, is := Read(t.Context(), f)
			why <- is
		}()
		time.Sleep(time.Minute)
		if f.sent != 1 {
			t.Errorf("%d questions are under way at once", f.sent)
		}
		f.carrier.Lock()
		f.silent = false
		f.answer()
		f.carrier.Unlock()
		if is := <-why; is != "" || f.sent != 2 {
			t.Errorf("%q after %d questions", is, f.sent)
		}
		f.wake = func() {}
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, why := Read(short, f); why != tooLate || f.session.Wanted() {
			t.Errorf("%q; it is still to be asked: %v", why, f.session.Wanted())
		}
	})
}

// TestQuestionThatIsNotSent holds that a failed write is heard of at once.
func TestQuestionThatIsNotSent(t *testing.T) {
	f := newFake()
	f.wake = func() { f.session.Ask(&f.work, f.at, func([]byte) error { return errors.New("broken") }) }
	if _, why := Read(t.Context(), f); why != "broken" {
		t.Errorf("%q", why)
	}
}

// TestTake holds which bytes of the server are the answer, in pieces of any length: the client gets the others.
func TestTake(t *testing.T) {
	notice, status := pgwire.AppendMessage(nil, 'N', []byte("Mhear\x00\x00")), pgwire.AppendMessage(nil, 'S', []byte("in_hot_standby\x00off\x00"))
	next := pgwire.AppendMessage(nil, 'A', []byte("\x00\x00\x00\x01c\x00\x00"))
	for _, piece := range []int{1, 7, 1 << 20} {
		for _, over := range []error{nil, errors.New("promoted")} {
			f := newFake()
			f.silent = true
			why := make(chan string, 1)
			woken := make(chan struct{})
			f.wake = func() { f.look(); close(woken) }
			go func() {
				_, is := Read(t.Context(), f)
				why <- is
			}()
			<-woken
			all := append(append(append(notice[:len(notice):len(notice)], status...), f.reply...), next...)
			var rest, aside []byte
			var err error
			for b := all; f.session.Answering(); b = b[min(piece, len(b)):] {
				rest, aside, err = f.session.Take(b[:min(piece, len(b))], func(reported map[string]string, unanswered []byte) error {
					if reported["in_hot_standby"] != "off" || unanswered != nil || len(why) > 0 {
						t.Errorf("%v, %v", reported, unanswered)
					}
					return over
				})
			}
			if is := <-why; is != "" {
				t.Errorf("%q", is)
			}
			want, after := string(notice)+string(status), string(next)
			if over != nil {
				want, after = "", ""
			}
			if piece < len(all) { // the next pieces have the rest of it
				after = after[:min(len(rest), len(after))]
			}
			if !errors.Is(err, over) || string(aside) != want || string(rest) != after {
				t.Errorf("in pieces of %d: %q before %q, %v", piece, aside, rest, err)
			}
		}
	}
}

// TestTakeGivenBack holds that the question of a session that its node gives back is told to be perhaps not asked.
func TestTakeGivenBack(t *testing.T) {
	f := newFake()
	var sent, unanswered []byte
	f.wake = func() {
		f.session.Ask(&f.work, f.at, func(b []byte) error { sent = b; return nil })
		_, _, _ = f.session.Take([]byte{continuity.GiveBack, 0, 0, 0, 4}, func(_ map[string]string, b []byte) error {
			unanswered = b
			return nil
		})
	}
	if _, why := Read(t.Context(), f); !strings.Contains(why, "it is leaving its server") || len(sent) == 0 || string(unanswered) != string(sent) {
		t.Errorf("%q, %q", why, unanswered)
	}
}

var times = known.Times{Tick: time.Second, Pause: 10 * time.Second, Idle: 5 * time.Second}

// TestKeep holds what is known of a session after it was asked beforehand.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		if Keep(t.Context(), f, times); f.work.Known.Told == nil || f.work.Known.Refusal != "" {
			t.Errorf("%+v", f.work.Known)
		}
		f = newFake([]string{"refusal", "it holds an advisory lock"})
		if Keep(t.Context(), f, times); f.work.Known.Told != nil || f.work.Known.Refusal == "" || f.work.Known.Stays == "" {
			t.Errorf("one that cannot be moved: %+v", f.work.Known)
		}
		f = newFake([]string{"extension", "dblink 1.2"})
		f.work.Local = false
		if Keep(t.Context(), f, times); f.work.Known.Told != nil || f.work.Known.Refusal == "" || f.work.Known.Stays != "" {
			t.Errorf("one with a library that may keep something, at another node: %+v", f.work.Known)
		}
		f = newFake()
		f.at.Between = false // it is asked once it is idle
		go Keep(t.Context(), f, times)
		synctest.Wait()
		if !f.session.Wanted() || f.sent > 0 {
			t.Error("one that is busy does not wait to be asked")
		}
		Keep(t.Context(), f, times) // another one asks: this one returns
		f.at.Between = true
		f.look()
		synctest.Wait()
		if f.work.Known.Told == nil || f.sent != 1 {
			t.Errorf("%+v after %d questions", f.work.Known, f.sent)
		}
		f.silent = true
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if Keep(short, f, times); f.work.Known.Told != nil || time.Until(f.work.Known.Next) != times.Pause {
			t.Errorf("without an answer: %+v", f.work.Known)
		}
	})
}

// TestWhoeverAsksIsHeard holds that a session stays known when somebody else asks for its state, and one becomes known
// by that.
func TestWhoeverAsksIsHeard(t *testing.T) {
	f := newFake()
	for range 2 {
		if _, why := Read(t.Context(), f); why != "" || f.work.Known.Told == nil {
			t.Errorf("%q; %+v", why, f.work.Known)
		}
		Keep(t.Context(), f, times)
	}
	f.reply = told([]string{"user", "ann"}, []string{"refusal", "it holds an advisory lock"})
	if _, why := Read(t.Context(), f); f.work.Known.Told != nil || f.work.Known.Refusal != why || f.work.Known.Stays != why {
		t.Errorf("%q; %+v", why, f.work.Known)
	}
	f = newFake()
	f.work.Known.Follows = false
	if _, why := Read(t.Context(), f); why != "" || f.work.Known.Told != nil {
		t.Errorf("one that is not followed: %q; %+v", why, f.work.Known)
	}
}

// TestKeepOfAnOldAnswer holds that an answer is not taken for the state of a session that was asked again since: it may
// have changed in between.
func TestKeepOfAnOldAnswer(t *testing.T) {
	f, facts := newFake(), 0
	f.asFacts = func() {
		if facts++; facts < 2 { // it waits for the answer still
			return
		}
		f.asFacts = nil
		f.follow("set work_mem = '9MB'")
		if _, why := Read(t.Context(), f); why != "" || f.sent != 2 {
			t.Errorf("%q after %d questions", why, f.sent)
		}
	}
	if Keep(t.Context(), f, times); f.work.Known.Told != nil || f.work.Known.Refusal != "" {
		t.Errorf("%+v", f.work.Known)
	}
	if at, asks := Due(f, time.Now(), times, false); !asks || time.Until(at) <= 0 {
		t.Errorf("asked again: %v, after %v", asks, time.Until(at))
	}
}

// TestDue holds when a session is asked beforehand.
func TestDue(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		name     string
		change   func(f *fake)
		draining bool
		asks     bool
		after    time.Duration
	}{
		{"local", func(*fake) {}, false, true, times.Idle},
		{"at another node", func(f *fake) { f.work.Local = false }, false, true, times.Tick},
		{"a drain asks for itself", func(*fake) {}, true, false, times.Tick},
		{"a drain here is none of another node's", func(f *fake) { f.work.Local = false }, true, true, times.Tick},
		{"in the kernel", func(f *fake) { f.work.Kernel.Store(&offload.Session{Slot: new(offload.Slot)}) }, false, true, times.Idle},
		{"of another node's client", func(f *fake) { f.facts.Relayed = true }, false, false, times.Tick},
		{"ended", func(f *fake) { f.facts.Over = true }, false, false, times.Tick},
		{"leaving", func(f *fake) { f.work.Leaving.Store(true) }, false, false, times.Tick},
		{"never", func(f *fake) { f.follow("load 'x'") }, false, false, times.Tick},
	} {
		f := newFake()
		f.facts.Move.Since = now
		c.change(f)
		if at, asks := Due(f, now, times, c.draining); asks != c.asks || at.Sub(now) != c.after {
			t.Errorf("%s: asked %v, after %v; want %v, %v", c.name, asks, at.Sub(now), c.asks, c.after)
		}
	}
	f := newFake()
	f.facts.Move.Since = now
	if Keep(t.Context(), f, times); f.work.Known.Told == nil {
		t.Fatal("it is not known")
	}
	if _, asks := Due(f, now, times, false); asks {
		t.Error("one that is known is asked")
	}
	f.work.Kernel.Store(&offload.Session{Slot: &offload.Slot{Ups: 1}})
	if _, asks := Due(f, now, times, false); !asks {
		t.Error("one that the kernel has relayed something of is not asked")
	}
}

var _ Host = (*fake)(nil)

// one returns the judgement of the only session.
func one(t *testing.T, moves []ag.SessionMove) ag.SessionMove {
	t.Helper()
	if len(moves) != 1 {
		t.Fatalf("%d sessions", len(moves))
	}
	return moves[0]
}
