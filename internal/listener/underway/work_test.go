package underway

import (
	"slices"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/offload"
)

// followed returns a session of another node's primary whose state was told.
func followed(replay bool) *Work {
	w := &Work{
		Rules:     &Rules{Continuity: func() bool { return true }, Replay: func() bool { return replay }},
		OnPrimary: true, Promoted: func() bool { return false },
	}
	w.Requests.Texts = w.PreparedText
	w.Known.Follows = true
	w.Knows(&continuity.State{Extensions: []string{"plpgsql 1.0"}, Tells: true, Ruleless: true})
	w.Ready('I')
	return w
}

// sends has the client send whole messages.
func (w *Work) sends(messages ...[]byte) {
	w.Lock()
	defer w.Unlock()
	for _, m := range messages {
		body := m[headerLength:]
		w.Sent(m, true, true)
		w.Follow(m[0], body, true, true)
		w.Requests.Forwarded(m[0], body)
		w.Requested(m[0])
	}
}

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

func query(text string) []byte { return m('Q', text+"\x00") }

// A request that was cut is executed again, fails or ends the session, by what it may have changed, and so does the
// transaction.
func TestInterrupt(t *testing.T) {
	for _, c := range []struct {
		name  string
		under func(w *Work)
		goes  bool
		want  Loss
	}{
		{"nothing", func(*Work) {}, true, Loss{}},
		{"a query", func(w *Work) { w.sends(query("select 1")) }, true, Loss{Fate: lone.Repeated}},
		{"a query whose answer has begun", func(w *Work) { w.sends(query("select 1")); w.Answering('T') }, true, Loss{Fate: lone.Failed}},
		{"a notice is no answer", func(w *Work) { w.sends(query("select 1")); w.Answering('N') }, true, Loss{Fate: lone.Repeated}},
		{"a change", func(w *Work) { w.sends(query("delete from t")) }, false, Loss{}},
		{"a change that was not sent", func(w *Work) {
			b := query("delete from t")
			w.sends(b)
			w.Unsent(len(b))
		}, true, Loss{Fate: lone.Repeated}},
		{"an open transaction", func(w *Work) { w.sends(query("begin")); w.Ready('T') }, true, Loss{Open: true}},
		{"a change in a transaction", func(w *Work) { w.sends(query("begin")); w.Ready('T'); w.sends(query("delete from t")) }, true, Loss{Interrupted: true, Failed: true}},
		{"a block that has failed", func(w *Work) { w.sends(query("begin")); w.Ready('T'); w.sends(query("select 1/0")); w.Ready('E') }, true, Loss{Failed: true}},
		{"a COMMIT", func(w *Work) { w.sends(query("begin")); w.Ready('T'); w.sends(query("commit")) }, false, Loss{}},
		{"half a request", func(w *Work) { w.Midway = true }, false, Loss{}},
		{"a batch without its end", func(w *Work) { w.sends(m('P', "\x00delete from t\x00\x00\x00")) }, false, Loss{}},
		{"CONTINUITY = OFF", func(w *Work) { w.Rules.Continuity = nil }, false, Loss{}},
		{"a stream", func(w *Work) { w.StreamBegins() }, false, Loss{}},
		{"a state that has changed", func(w *Work) { w.sends(query("set x = 1")); w.Ready('I') }, false, Loss{}},
	} {
		w := followed(false)
		c.under(w)
		if goes := w.Interrupt(); goes != c.goes || w.Loss != c.want {
			why, _ := w.WouldEnd()
			t.Errorf("%s: it goes on %v (%s), %+v; want %v, %+v", c.name, goes, why, w.Loss, c.goes, c.want)
		}
	}
}

// An open transaction is executed again only with CONTINUITY = REPLAY, and only if all of it was kept.
func TestPlanReplay(t *testing.T) {
	open := func(replay bool, texts ...string) *Work {
		w := followed(replay)
		for _, text := range append([]string{"begin"}, texts...) {
			w.sends(query(text))
			w.Answered('Z', m('Z', "T"), true)
			w.Ready('T')
		}
		return w
	}
	st := &continuity.State{}
	changed := open(true, "delete from t")
	changed.Answered('S', m('S', "x\x00y\x00"), true)
	for _, c := range []struct {
		name    string
		w       *Work
		replays bool
		refused bool
	}{
		{"SESSION", open(false, "delete from t"), false, false},
		{"REPLAY", open(true, "delete from t"), true, false},
		{"a setting has changed", changed, false, true},
		{"none is open", followed(true), false, false},
	} {
		if !c.w.Interrupt() {
			t.Fatalf("%s: it ends", c.name)
		}
		if why := c.w.PlanReplay(st); c.w.Loss.Replays != c.replays || (why != "") != c.refused {
			t.Errorf("%s: executed again %v, %q", c.name, c.w.Loss.Replays, why)
		}
	}
	w, next := open(true, "delete from t"), followed(true)
	if !w.Logs() || w.Rules.Logs.Used() == 0 {
		t.Error("nothing is kept")
	}
	if w.Interrupt() && w.PlanReplay(st) == "" {
		if again := next.Continues(w, true); len(again) > 0 || next.log().On() {
			t.Errorf("%q is sent again, and the transaction would be executed a third time: %v", again, next.log().On())
		}
	}
	if w.Close(); w.Logs() || w.Rules.Logs.Used() != 0 {
		t.Errorf("%d bytes are in use after the end", w.Rules.Logs.Used())
	}
}

// A query that goes on at the next server is sent there, and not a third time.
func TestContinues(t *testing.T) {
	w, next, last := followed(false), followed(false), followed(false)
	w.Application = "psql"
	b := query("select 1")
	w.sends(b)
	if !w.Interrupt() {
		t.Fatal("it ends")
	}
	again := next.Continues(w, false)
	if string(again) != string(b) || next.Application != "psql" || !w.Guarded() {
		t.Errorf("%q is sent again, guarded %v, by %q", again, w.Guarded(), next.Application)
	}
	if next.sends(again); !next.Interrupt() || next.Loss.Fate != lone.Failed {
		t.Errorf("%+v", next.Loss)
	}
	if again := last.Continues(next, false); len(again) > 0 {
		t.Errorf("%q is sent a third time", again)
	}
}

// The number of a transaction is asked for before its COMMIT, and with it the outcome can be proved.
func TestProbe(t *testing.T) {
	w := followed(false)
	commit := query("commit")
	if w.Probe(commit); len(w.Preceded(nil)) > 0 {
		t.Error("a number is asked for outside a transaction")
	}
	w.sends(query("begin"))
	w.Ready('T')
	w.Known.Told.Tells = false
	if w.Probe(commit); len(w.Preceded(nil)) > 0 {
		t.Error("a server is asked that tells none")
	}
	w.Known.Told.Tells = true
	for _, tag := range []string{"BEGIN", "SHOW", "SAVEPOINT", "RELEASE"} {
		w.Asking.Ended([]byte(tag + "\x00"))
	}
	if w.Probe(commit); len(w.Preceded(nil)) > 0 {
		t.Error("the number of a transaction is asked for that has done nothing")
	}
	if w.sends(commit); !w.Provable() || !w.Interrupt() || !w.Loss.Doubtful || w.Asking.Commit.Xid != 0 {
		t.Errorf("the outcome of a transaction that has done nothing is not known: %+v", w.Loss)
	}
	w.Ready('I')
	w.sends(query("begin; select 1"))
	w.Asking.Ended([]byte("BEGIN\x00"))
	w.Asking.Ended([]byte("SELECT 1\x00"))
	w.Ready('T')
	w.Probe(commit)
	if out := w.Preceded(commit); len(out) <= len(commit) || string(w.Preceded(commit)) != string(commit) {
		t.Errorf("%q goes to the server", out)
	}
	w.sends(commit)
	if w.Provable() || w.WhyUnknown() != indoubt.ReasonNotTold {
		t.Errorf("it can be proved without a number: %v, %s", w.Provable(), w.WhyUnknown())
	}
	if !w.MaySwallow([]byte{'1', 0}) || !w.HoldsPart([]byte{'1', 0}) {
		t.Error("the answer to the question passes in pieces")
	}
	if swallow, refused := w.Swallows('1', m('1', ""), false); !swallow || refused {
		t.Errorf("the client gets the answer to the question: %v, refused %v", !swallow, refused)
	}
	if w.Ready('I'); w.Asking.Asks.Load() {
		t.Error("the question goes on after the answer to the COMMIT")
	}
}

// A transaction of which the answers were not all seen may have done something.
func TestProbeOfWhatWasNotSeen(t *testing.T) {
	commit := query("commit")
	for name, unseen := range map[string]func(w *Work) *Work{
		"an error":           func(w *Work) *Work { w.Asking.Worked(); return w },
		"COMMIT AND CHAIN":   func(w *Work) *Work { w.Asking.Ended([]byte("COMMIT\x00")); return w },
		"ROLLBACK to a name": func(w *Work) *Work { w.Asking.Ended([]byte("ROLLBACK\x00")); return w },
		"executed again": func(w *Work) *Work {
			next := followed(false)
			next.Continues(w, true)
			next.Status.Store('T')
			return next
		},
	} {
		w := followed(false)
		w.sends(query("begin"))
		w.Asking.Ended([]byte("BEGIN\x00"))
		w.Ready('T')
		w = unseen(w)
		if w.Probe(commit); len(w.Preceded(nil)) == 0 {
			t.Errorf("%s: its number is not asked for", name)
		}
	}
}

// A change outside a block waits for the number of its transaction, and its answer is held until its end.
func TestChange(t *testing.T) {
	w := followed(true)
	change := query("update t set x = 1")
	if w.BeginsChange(query("select 1")) != nil {
		t.Error("a query is taken for a change")
	}
	c := w.BeginsChange(change)
	if c == nil || !w.Writes() || w.Idle() {
		t.Fatalf("%v, held %v, idle %v", c, w.Writes(), w.Idle())
	}
	if q, asked := w.NotAsked(); !asked || len(q) == 0 {
		t.Errorf("the question was not forwarded: %q, %v", q, asked)
	}
	if known, failed := w.NumberTold(c); known || failed {
		t.Errorf("before the answer: %v, %v", known, failed)
	}
	if before, held := w.HoldsAnswer('E', m('E', "SERROR\x00VERROR\x00C42501\x00\x00")); !held || before != nil {
		t.Errorf("the client gets %q of a question that fails", before)
	}
	if synced, canceled := w.QuestionAnswered(c); canceled || len(synced) == 0 {
		t.Errorf("%q, canceled %v", synced, canceled)
	}
	if known, failed := w.NumberTold(c); known || !failed || w.Writes() || !w.Idle() || w.BeginsChange(change) != nil {
		t.Errorf("after it has failed: known %v, failed %v, held %v, idle %v", known, failed, w.Writes(), w.Idle())
	}
	w = followed(false)
	if w.OnPrimary = true; w.BeginsChange(change) == nil {
		t.Error("a session that is followed asks for no number")
	}
	if w.Unbegun(); !w.Held || w.Unsynced.Load() {
		t.Error("a request that was not begun is under way")
	}
}

// During a drain a client may send the rest of a request that has begun, and nothing else.
func TestWaits(t *testing.T) {
	w := followed(false)
	if !w.Waits('Q') || w.Waits('X') || w.Busy() {
		t.Errorf("idle: a query waits %v, Terminate %v, busy %v", w.Waits('Q'), w.Waits('X'), w.Busy())
	}
	if w.sends(query("copy t from stdin")); !w.Waits('Q') || w.Waits('d') || !w.Busy() || w.State() != "active" {
		t.Errorf("during a request: a query waits %v, COPY data %v, %s", w.Waits('Q'), w.Waits('d'), w.State())
	}
	if w.Ready('T'); w.Waits('Q') || w.State() != "idle in transaction" {
		t.Errorf("in a transaction: a query waits %v, %s", w.Waits('Q'), w.State())
	}
	w.Ready('I')
	if w.sends(m('P', "\x00select 1\x00\x00\x00")); w.Waits('S') || w.Idle() {
		t.Errorf("in a batch: its end waits %v, idle %v", w.Waits('S'), w.Idle())
	}
	w = followed(false)
	w.sends(m('P', "\x00copy t from stdin\x00\x00\x00"), m('S', ""), m('c', ""))
	if w.Owed.Load() != 0 || !w.Unsynced.Load() {
		t.Errorf("%d answers are owed for a Sync that PostgreSQL ignores in a COPY", w.Owed.Load())
	}
}

// While the kernel relays a session, its slot tells what is under way.
func TestIdleInTheKernel(t *testing.T) {
	w := followed(false)
	slot := &offload.Slot{Status: 'I'}
	w.Kernel.Store(&offload.Session{Slot: slot})
	if !w.Offloaded() || !w.Idle() || w.State() != "idle" {
		t.Errorf("%v, idle %v, %s", w.Offloaded(), w.Idle(), w.State())
	}
	if slot.Ups = 1; w.Idle() || w.State() != "active" {
		t.Errorf("with a request in the kernel: idle %v, %s", w.Idle(), w.State())
	}
	w.Kernel.Store(nil)
	if !w.Idle() {
		t.Error("it is back, and not idle")
	}
}

// The outlook names the statement by which a session is not kept, and what a planned failover does with its
// transaction.
func TestOutlook(t *testing.T) {
	w := followed(true)
	w.Reported([]byte("application_name\x00psql\x00"))
	w.Knows(&continuity.State{Extensions: []string{"plpgsql 1.0"}})
	if o := w.Outlook("z", "u"); o.Replica != "z" || o.User != "u" || o.Application != "psql" || o.Server.Fate != continuity.Kept || o.Node != o.Server {
		t.Errorf("%+v", o)
	}
	w.sends(query("begin"))
	w.Answered('Z', m('Z', "T"), true)
	w.Ready('T')
	var move ag.SessionMove
	if w.Foresee(&move, false); !move.Waits || move.Cut != cutReplayed || w.Outlook("z", "u").Transaction.Fate != continuity.Kept {
		t.Errorf("%+v, %+v", move, w.Outlook("z", "u"))
	}
	w.sends(query("select setseed(0.5)"))
	o := w.Outlook("z", "u")
	if move = (ag.SessionMove{}); o.Server.Fate != continuity.Ends || o.Statement == "" {
		t.Errorf("%+v", o)
	}
	if w.Foresee(&move, false); move.Waits || move.Why == "" {
		t.Errorf("%+v", move)
	}
	w = followed(false)
	if w.Local = true; w.Outlook("z", "u").Node.Fate != continuity.Ends {
		t.Error("a client outlives the node of its listener")
	}
}

// The outlook has what a client would hear of a COMMIT whose answer is lost with the server, and why.
func TestOutlookOfCommits(t *testing.T) {
	commit := query("commit")
	inBlock := func(w *Work) {
		w.sends(query("begin"))
		w.Asking.Worked()
		w.Ready('T')
	}
	told := func(w *Work) {
		for _, b := range [][]byte{m('V', "\x00\x00\x00\x03741"), m('Z', "T"), m('V', "\x00\x00\x00\x18000000020000000000000003"), m('Z', "T")} {
			_, _ = w.Swallows(b[0], b, false)
		}
	}
	for _, c := range []struct {
		name string
		with func(w *Work)
		want continuity.Prospect
	}{
		{"idle", func(*Work) {}, continuity.Prospect{Fate: continuity.Proved}},
		{"a reader", func(w *Work) { w.OnPrimary = false }, continuity.Prospect{}},
		{"CONTINUITY = OFF", func(w *Work) { w.Rules.Continuity = func() bool { return false } }, continuity.Prospect{Fate: continuity.Unproved, Why: "state"}},
		{"a server that tells no number", func(w *Work) { w.Known.Told.Tells = false }, continuity.Prospect{Fate: continuity.Unproved, Why: "not asked"}},
		{"a server that has refused", func(w *Work) { w.Asking.Refused = true }, continuity.Prospect{Fate: continuity.Unproved, Why: "not asked"}},
		{"a query", func(w *Work) { w.sends(query("select 1")) }, continuity.Prospect{Fate: continuity.Proved}},
		{"a change", func(w *Work) { w.sends(query("update t set x = 1")) }, continuity.Prospect{Fate: continuity.Unproved, Why: "statement"}},
		{"in a block", inBlock, continuity.Prospect{Fate: continuity.Proved}},
		{"a COMMIT in a text", func(w *Work) { inBlock(w); w.sends(query("commit; select 1")) }, continuity.Prospect{Fate: continuity.Unproved, Why: "not asked"}},
		{"a COMMIT", func(w *Work) { inBlock(w); w.Probe(commit); w.sends(commit) }, continuity.Prospect{Fate: continuity.Unproved, Why: "not told"}},
		{"a COMMIT with its number", func(w *Work) { inBlock(w); w.Probe(commit); w.sends(commit); told(w) }, continuity.Prospect{Fate: continuity.Proved}},
		{"a COMMIT whose answer has begun", func(w *Work) {
			inBlock(w)
			w.Probe(commit)
			w.sends(commit)
			told(w)
			_, _ = w.Swallows('C', m('C', "COMMIT\x00"), false)
		}, continuity.Prospect{Fate: continuity.Unproved, Why: "answer cut"}},
	} {
		w := followed(false)
		c.with(w)
		if got := w.Outlook("a", "app").Commit; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// A COPY of the extended protocol leaves the answers outstanding that it does not answer itself: PostgreSQL ignores a
// Sync while the client sends, and answers those before and behind that.
func TestRequestsAroundACopy(t *testing.T) {
	begin := [][]byte{m('P', "\x00copy t from stdin\x00\x00\x00"), m('B', "\x00\x00\x00\x00\x00\x00\x00\x00"), m('E', "\x00\x00\x00\x00\x00")}
	sync, flush, data, done := m('S', ""), m('H', ""), m('d', "1\n"), m('c', "")
	for _, c := range []struct {
		name string
		sent [][]byte
		owed int32
	}{
		{"a Sync behind it", slices.Concat(begin, [][]byte{data, done, sync}), 1},
		{"a Sync within it", slices.Concat(begin, [][]byte{sync, data, done, sync}), 1},
		{"two within it, and a Flush", slices.Concat(begin, [][]byte{sync, sync, flush, data, done, sync}), 1},
		{"a request before it", slices.Concat([][]byte{sync}, begin, [][]byte{data, done, sync}), 2},
		{"a request before it, and a Sync within it", slices.Concat([][]byte{query("select 1")}, begin, [][]byte{sync, data, done, sync}), 2},
		{"it fails", slices.Concat([][]byte{sync}, begin, [][]byte{sync, m('f', "no\x00"), sync}), 2},
	} {
		w := followed(false)
		w.sends(c.sent...)
		for n := c.owed; n >= 0; n-- {
			if w.Owed.Load() != n || w.Idle() != (n == 0) {
				t.Errorf("%s: %d answers are owed, idle %v; want %d", c.name, w.Owed.Load(), w.Idle(), n)
			}
			w.Ready('I')
		}
	}
}
