package passage

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/giveback"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/instead"
	"github.com/coteriedb/coterie/internal/listener/stmt"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// fake is a session with what it has heard.
type fake struct {
	Passage
	work     underway.Work
	drain    *Drain
	ended    bool
	fromNode bool
	keeps    bool
	refuses  string // a text for which the session ends
	ends     []End
	heard    []string
	kept     []byte // what the next chunk begins with
}

func newFake() *fake {
	f := &fake{work: underway.Work{OnPrimary: true, Local: true, Rules: &underway.Rules{}}}
	f.work.Requests.Texts = f.work.PreparedText
	f.work.Ready('I')
	return f
}

func (f *fake) Ended() bool    { return f.ended }
func (f *fake) Ends(with End)  { f.ends, f.ended = append(f.ends, with), true }
func (f *fake) FromNode() bool { return f.fromNode }
func (f *fake) Drain() *Drain  { return f.drain }
func (f *fake) Changes(p instead.Piece) (over bool) {
	if f.refuses != "" && bytes.Contains(p.B, []byte(f.refuses)) {
		f.ended = true
	}
	return f.ended
}
func (f *fake) Uses(byte, []byte, bool, bool) { f.heard = append(f.heard, "uses") }
func (f *fake) KeepsBackend() bool            { f.heard = append(f.heard, "terminates"); return f.keeps }
func (f *fake) Forwarded()                    { f.heard = append(f.heard, "forwarded") }
func (f *fake) Started()                      { f.heard = append(f.heard, "started") }
func (f *fake) Taints()                       { f.heard = append(f.heard, "taints") }
func (f *fake) NumberRefused()                { f.heard = append(f.heard, "refused") }

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

func query(text string) []byte { return m('Q', text+"\x00") }

// release releases as much of b as may go, at once. waits is whether the rest has to.
func (f *fake) release(b []byte) (sent []byte, waits bool, err error) {
	for len(b) > 0 {
		n, d, bad := f.Release(&f.work, f, b)
		if bad != nil || n == 0 {
			return sent, d != nil, bad
		}
		sent, b = append(sent, f.Goes(&f.work, b[:n])...), b[n:]
	}
	return sent, false, nil
}

// TestRelease holds which bytes of the client go to its server.
func TestRelease(t *testing.T) {
	one, two := query("select 1"), query("select 2")
	both := slices.Concat(one, two)
	load := query("load 'x'")
	drain := func(f *fake) { f.drain = &Drain{} }
	for _, c := range []struct {
		name   string
		change func(f *fake)
		b      []byte
		sent   []byte
		waits  bool
		state  func(f *fake) bool
	}{
		{"two requests", nil, both, both, false, func(f *fake) bool { return f.work.Owed.Load() == 2 && !f.work.Midway && !f.work.Held }},
		{"half a request", nil, one[:8], one[:8], false, func(f *fake) bool { return f.work.Midway && f.work.Owed.Load() == 0 }},
		{"a drain holds what is new", drain, one, nil, true, func(f *fake) bool { return f.work.Held && f.work.Owed.Load() == 0 && len(f.heard) == 0 }},
		{"a drain lets an open transaction run", func(f *fake) { drain(f); f.work.Ready('T') }, one, one, false, nil},
		{"a drain holds what follows", func(f *fake) { drain(f); f.work.Ready('T') }, both, one, true, func(f *fake) bool { return f.work.Owed.Load() == 1 }},
		{"a drain lets the end of a request pass", func(f *fake) { _, _, _ = f.release(one[:8]); drain(f) }, append(one[8:len(one):len(one)], two...), one[8:], true, nil},
		{"a drain lets clients leave", drain, m('X', ""), m('X', ""), false, func(f *fake) bool { return f.Terminated.Load() }},
		{"a drain holds no stream", func(f *fake) { drain(f); f.work.Streams = true }, m('d', "x"), m('d', "x"), false, nil},
		{"a drain of this node is none of another one's", func(f *fake) { drain(f); f.work.Local = false }, one, one, false, nil},
		{"the outcome is decided", func(f *fake) { f.work.Requests.Sealed = true }, one, nil, false, func(f *fake) bool { return f.work.Owed.Load() == 0 }},
		{"it leaves its server", func(f *fake) { f.work.Leaving.Store(true) }, one, nil, false, func(f *fake) bool { return f.work.Owed.Load() == 0 }},
		{"it was ended from outside", func(f *fake) { f.ended, f.work.Held = true, true }, one[:8], nil, false, func(f *fake) bool { return f.work.Held && !f.work.Midway }},
		{"it is ended for what it sends", func(f *fake) { f.refuses = "select 2" }, both, nil, false, func(f *fake) bool { return f.ended }},
		{"it terminates", nil, m('X', ""), m('X', ""), false, func(f *fake) bool { return slices.Equal(f.heard, []string{"terminates", "forwarded"}) }},
		{"it terminates, and its backend is kept", func(f *fake) { f.keeps = true }, m('X', ""), nil, false, func(f *fake) bool { return slices.Equal(f.heard, []string{"terminates"}) }},
		{"it terminates behind a request", func(f *fake) { f.keeps = true }, append(query("select 3"), m('X', "")...), append(query("select 3"), m('X', "")...), false, nil},
		{"a replication command", func(f *fake) { f.work.Replicates = true }, one, one, false, func(f *fake) bool { return len(f.ends) == 0 }},
		{"a replication command out of turn", func(f *fake) { f.work.Replicates = true }, both, nil, false, func(f *fake) bool { return slices.Equal(f.ends, []End{OutOfTurn}) }},
		{"bytes of the listener behind a request", func(f *fake) { f.Behind = m('S', "") }, both, slices.Concat(one, m('S', ""), two), false, func(f *fake) bool { return f.Behind == nil }},
		{"a session of a pool", func(f *fake) { f.Pooled = true }, both, both, false, func(f *fake) bool { return slices.Equal(f.heard, []string{"uses", "uses", "forwarded"}) }},
		{"a session of no pool", nil, load, load, false, func(f *fake) bool { return f.work.Tracker.Why() != "" && slices.Equal(f.heard, []string{"forwarded"}) }},
		{"a COPY may follow", nil, m('P', "\x00copy t from stdin\x00\x00\x00"), m('P', "\x00copy t from stdin\x00\x00\x00"), false, func(f *fake) bool { return f.Copies }},
		{"no COPY follows", nil, m('P', "\x00select 1\x00\x00\x00"), m('P', "\x00select 1\x00\x00\x00"), false, func(f *fake) bool { return !f.Copies }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake()
			if c.change != nil {
				c.change(f)
				f.heard = nil
			}
			sent, waits, err := f.release(c.b)
			if err != nil || !bytes.Equal(sent, c.sent) || waits != c.waits {
				t.Errorf("sent %q, waits %v, %v; want %q, %v", sent, waits, err, c.sent, c.waits)
			}
			if c.state != nil && !c.state(f) {
				t.Errorf("ends %v, hears %v, held %v, midway %v, owed %d", f.ends, f.heard, f.work.Held, f.work.Midway, f.work.Owed.Load())
			}
		})
	}
	if _, _, err := newFake().release([]byte{'Q', 0, 0, 0, 1}); err == nil {
		t.Error("a length that cannot be is no violation of the protocol")
	}
}

// pass passes b on, in chunks of at most that size, and returns what the client gets. Each answer at stake is
// confirmed.
func (f *fake) pass(b []byte, size int) (got []byte, stakes int, err error) {
	return f.passes(slices.Collect(slices.Chunk(b, size))...)
}

// passes is pass for these chunks.
func (f *fake) passes(chunks ...[]byte) (got []byte, stakes int, err error) {
	for _, b := range chunks {
		c := f.Chunk(slices.Concat(f.kept, b), len(f.kept))
		for {
			out, s, err := f.Advance(&f.work, f, &c)
			if err != nil {
				return got, stakes, err
			}
			if got = append(got, out...); s == stmt.NoEffect {
				break
			}
			stakes++
			c = *c.Owned()
		}
		f.MidMessage, f.kept = c.Partly(), bytes.Clone(c.Kept())
	}
	return got, stakes, nil
}

// TestAdvance holds which bytes of the server the client gets, and what they say of the session, in chunks of any size.
func TestAdvance(t *testing.T) {
	row, done, ready := m('D', "\x00\x01\x00\x00\x00\x011"), m('C', "SELECT 1\x00"), m('Z', "I")
	answer := slices.Concat(m('T', "\x00\x00"), row, row, done, ready)
	name := m('S', "application_name\x00cot_2\x00")
	died := m('E', "SFATAL\x00VFATAL\x00C57P01\x00Mterminating\x00Rsecure_read\x00\x00")
	standby := m('S', "in_hot_standby\x00off\x00")
	canceled := m('E', "SERROR\x00VERROR\x00C57014\x00Mcanceling\x00\x00")
	wrote := m('E', "SERROR\x00VERROR\x00C25006\x00Mcannot execute\x00\x00")
	for _, c := range []struct {
		name   string
		change func(f *fake)
		b      []byte
		got    []byte
		err    error
		state  func(f *fake) bool
	}{
		{"an answer", func(f *fake) { f.work.Owed.Store(1) }, answer, answer, nil, func(f *fake) bool { return f.work.Owed.Load() == 0 && len(f.heard) == 0 }},
		{"the first one", func(f *fake) { f.Starting = true }, append(ready, ready...), append(ready, ready...), nil, func(f *fake) bool { return slices.Equal(f.heard, []string{"started"}) }},
		{"its status", nil, m('Z', "T"), m('Z', "T"), nil, func(f *fake) bool { return f.work.Status.Load() == 'T' }},
		{"a setting and a notification", nil, append(m('S', "a\x00b\x00"), m('A', "\x00\x00\x00\x01c\x00\x00")...), append(m('S', "a\x00b\x00"), m('A', "\x00\x00\x00\x01c\x00\x00")...), nil, func(f *fake) bool { return slices.Equal(f.heard, []string{"taints", "taints"}) }},
		{"a member's name", nil, name, name, nil, func(f *fake) bool { return len(f.ends) == 0 }},
		{"a member's name on a stream", func(f *fake) { f.work.Replicates = true }, name, name, nil, func(f *fake) bool { return slices.Equal(f.ends, []End{Member}) }},
		{"a stream", nil, m('W', "\x00\x00\x00"), m('W', "\x00\x00\x00"), nil, func(f *fake) bool { return f.work.Streams }},
		{"a key", nil, m('K', "\x00\x00\x00\x07abcd"), m('K', "\x00\x00\x00\x07abcd"), nil, func(f *fake) bool { return string(*f.Key.Load()) == "\x00\x00\x00\x07abcd" }},
		{"its last error", nil, died, died, nil, func(f *fake) bool { return f.FatalSent.Load() }},
		{"an error", nil, wrote, wrote, nil, func(f *fake) bool { return !f.FatalSent.Load() && len(f.ends) == 0 }},
		{"its server was promoted", func(f *fake) { f.Recovery.On = true }, append(answer[:len(answer):len(answer)], standby...), nil, ErrPromoted, func(f *fake) bool { return slices.Equal(f.ends, []End{Promoted}) }},
		{"a query that is executed again writes", func(f *fake) { f.Guarding.Begin('P') }, wrote, nil, ErrPromoted, func(f *fake) bool { return slices.Equal(f.ends, []End{HiddenWrite}) }},
		{"a query that is executed again leaves a block", func(f *fake) { f.Guarding.Begin('Q') }, slices.Concat(done, m('Z', "T"), canceled, m('Z', "E")), nil, ErrPromoted, func(f *fake) bool { return slices.Equal(f.ends, []End{OpenBlock}) }},
		{"a query that is executed again is canceled", func(f *fake) { f.Guarding.Begin('Q') }, slices.Concat(canceled, m('Z', "E"), m('C', "ROLLBACK\x00"), ready), append(canceled, ready...), nil, func(f *fake) bool { return len(f.ends) == 0 }},
		{"a message that gives nothing back", nil, m(giveback.Message, ""), m(giveback.Message, ""), nil, func(f *fake) bool { return f.Given == nil }},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			f := newFake()
			if c.change != nil {
				c.change(f)
			}
			got, stakes, err := f.pass(c.b, size)
			if err != c.err || stakes > 0 || c.err == nil && !bytes.Equal(got, c.got) { //nolint:errorlint // our own
				t.Errorf("%s, in chunks of %d: the client gets %q, want %q; %d at stake, %v", c.name, size, got, c.got, stakes, err)
			}
			if c.state != nil && !c.state(f) {
				t.Errorf("%s, in chunks of %d: ends %v, hears %v", c.name, size, f.ends, f.heard)
			}
		}
	}
}

// TestGivenBack holds that nothing behind the message that gives the session back is for the client.
func TestGivenBack(t *testing.T) {
	f := newFake()
	f.fromNode, f.work.Local = true, false
	got, _, err := f.pass(slices.Concat(m('Z', "I"), m(giveback.Message, ""), []byte("state")), 1<<20)
	if err != nil || !bytes.Equal(got, m('Z', "I")) || string(f.Given) != "state" {
		t.Errorf("the client gets %q, %q is given back, %v", got, f.Given, err)
	}
}

// TestTail holds that the rest of a message is not taken for the beginning of one: the client has half a message until
// it has that, and nothing else may be written to it.
func TestTail(t *testing.T) {
	f := newFake()
	f.work.Rules.Continuity, f.work.Known.Follows = func() bool { return true }, true
	f.work.Knows(&continuity.State{Extensions: []string{"plpgsql 1.0"}})
	if _, _, err := f.release(query("select 1")); err != nil {
		t.Fatal(err)
	}
	row := m('D', "\x00\x01\x00\x00\x20\x00"+strings.Repeat("C", 8<<10)) // a short one is held until it is whole
	got, _, err := f.pass(row[:len(row)-4], 1<<20)
	if err != nil || !bytes.Equal(got, row[:len(row)-4]) || !f.MidMessage {
		t.Fatalf("the client gets %d bytes, %v", len(got), err)
	}
	c := f.Chunk([]byte("CC"), 0)
	out, _, err := f.Advance(&f.work, f, &c)
	if err != nil || string(out) != "CC" || !c.Partly() || len(c.Kept()) > 0 {
		t.Errorf("the client gets %q, %q is kept, it has half a message: %v, %v", out, c.Kept(), c.Partly(), err)
	}
}

// TestTailOfALongCommandComplete holds that the end of a CommandComplete that is too long to be held is passed on as it
// arrives. The session is not between two messages until then, and its end is not taken for a message.
func TestTailOfALongCommandComplete(t *testing.T) {
	asked := slices.Concat(m('1', ""), m('2', ""), m('D', "\x00\x01\x00\x00\x00\x1c741 000000010000000000000001"), m('C', "SELECT 1\x00"), m('3', ""))
	done := m('C', "INSERT 0 1"+strings.Repeat("x", 5<<10)+"\x00")
	for _, writes := range []bool{false, true} { // whether the answer to a change is held, but for long messages
		for _, last := range []int{1, 3, 4, 30, 64, 99} {
			f := newFake()
			if writes {
				f.work.Change(query("insert into t values (1)"))
				if got, _, err := f.passes(asked); err != nil || len(got) > 0 {
					t.Fatalf("of the answer to the question the client gets %q, %v", got, err)
				}
			}
			for _, b := range [][]byte{done[:len(done)-100], done[len(done)-100 : len(done)-last], done[len(done)-last:]} {
				got, _, err := f.passes(b)
				if whole := len(b) == last; err != nil || !bytes.Equal(got, b) || len(f.kept) > 0 || f.MidMessage == whole {
					t.Errorf("writes %v, the last %d bytes come alone: of %d the client gets %d, it has half a message: %v, %v", writes, last, len(b), len(got), f.MidMessage, err)
				}
			}
		}
	}
}

// TestStakes holds that an answer which may have ended a commit is handed out only after what comes before it, and
// once it is confirmed: whatever the size of the chunks.
func TestStakes(t *testing.T) {
	for _, size := range []int{1, 2, 5, 1 << 20} {
		f := newFake()
		f.Confirmation.Guarded = true // there is no log: each one is confirmed
		if _, _, err := f.release(query("insert into t values (1)")); err != nil {
			t.Fatal(err)
		}
		notice, done, ready := m('N', "VNOTICE\x00\x00"), m('C', "INSERT 0 1\x00"), m('Z', "I")
		c := f.Chunk(slices.Concat(notice, done, ready), 0)
		out, s, err := f.Advance(&f.work, f, &c)
		if err != nil || s == stmt.NoEffect || !bytes.Equal(out, notice) {
			t.Fatalf("%q is handed out, %d is at stake, %v", out, s, err)
		}
		if out, s, err = f.Advance(&f.work, f, &c); err != nil || s != stmt.NoEffect || !bytes.Equal(out, append(done, ready...)) || len(c.Kept()) > 0 {
			t.Errorf("once it is confirmed %q is handed out, %d is at stake, %v", out, s, err)
		}
		_, _, _ = f.release(query("insert into t values (2)"))
		all := slices.Concat(notice, done, ready)
		if got, stakes, err := f.pass(all, size); err != nil || stakes == 0 || !bytes.Equal(got, all) {
			t.Errorf("in chunks of %d: %q, %d at stake, %v", size, got, stakes, err)
		}
	}
}

// TestChunksDoNotMatter holds that the client gets the same bytes, and the session is in the same state, however its
// server's bytes arrive.
func TestChunksDoNotMatter(t *testing.T) {
	messages := [][]byte{
		m('T', "\x00\x00"), m('D', "\x00\x01\x00\x00\x00\x03abc"), m('C', "SELECT 1\x00"), m('Z', "I"), m('Z', "T"), m('1', ""), m('2', ""), m('3', ""),
		m('E', "VERROR\x00C42601\x00\x00"), m('N', "VNOTICE\x00\x00"), m('A', "\x00\x00\x00\x01c\x00\x00"), m('S', "a\x00b\x00"), m('d', "copied"), m('s', ""),
	}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 7))
		var all []byte
		for range 1 + r.IntN(12) {
			all = append(all, messages[r.IntN(len(messages))]...)
		}
		whole, parts := newFake(), newFake()
		want, _, err := whole.pass(all, len(all))
		if err != nil || !bytes.Equal(want, all) {
			t.Fatalf("seed %d: the client gets %q of %q, %v", seed, want, all, err)
		}
		got, _, err := parts.pass(all, 1+r.IntN(20))
		if err != nil || !bytes.Equal(got, all) || !slices.Equal(whole.heard, parts.heard) || whole.work.Status.Load() != parts.work.Status.Load() || parts.MidMessage {
			t.Errorf("seed %d: the client gets %q of %q, %v", seed, got, all, err)
		}
	}
}

// The answer to a Close may be on its way through downstream when a COMMIT is forwarded that ends the same batch. It is
// not counted among those that come before the answer to the question, whose beginning would be taken for it.
func TestCloseThatIsAnsweredBesideACommit(t *testing.T) {
	f := newFake()
	closed := m('3', "")
	passes := func(what string, want []byte) {
		t.Helper()
		if got, _, err := f.pass(closed, 1<<20); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the client gets %q, %v", what, got, err)
		}
	}
	f.work.Batched('C')
	f.work.Batched('C')
	// Advance looks first whether an answer is for the client, and observes it then: the COMMIT comes in between.
	if swallow, _ := f.work.Swallows('3', closed, false); swallow {
		t.Fatal("it is kept from the client, and nothing was asked")
	}
	f.work.Asking.Commit = indoubt.New(nil, 0).InBatch(f.work.Asking.Closes) // before downstream has observed the answer
	f.work.Asking.Asks.Store(true)
	f.observe(&f.work, f, '3', nil)
	passes("the second Close", closed)
	passes("the beginning of the answer to the question", nil)
}

// TestCheckGreeting holds that a stream of logical replication is refused whose role or database gives it the name of a
// member.
func TestCheckGreeting(t *testing.T) {
	greeting := slices.Concat(m('S', "server_version\x0017.1\x00"), m('S', "application_name\x00cot_2\x00"), m('Z', "I"))
	for _, c := range []struct {
		replicates bool
		greeting   []byte
		refused    bool
	}{{true, greeting, true}, {false, greeting, false}, {true, m('S', "application_name\x00mine\x00"), false}} {
		w := &underway.Work{Replicates: c.replicates}
		if bad := CheckGreeting(w, c.greeting); (bad != nil) != c.refused {
			t.Errorf("%v of %q: %v", c.replicates, c.greeting, bad)
		}
	}
}
