package indoubt

import (
	"bytes"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

func join(b ...[]byte) []byte { return bytes.Join(b, nil) }

// Only a request that is exactly one COMMIT is recognised.
func TestDone(t *testing.T) {
	parse := func(text string) []byte { return m('P', "\x00"+text+"\x00\x00\x00") }
	bind, execute, sync := m('B', "\x00\x00\x00\x00\x00\x00\x00\x00"), m('E', "\x00\x00\x00\x00\x00"), m('S', "")
	describe, describeStatement := m('D', "P\x00"), m('D', "S\x00")
	named, end := m('B', "\x00c\x00\x00\x00\x00\x00\x00\x00"), join(m('C', "COMMIT\x00"), m('Z', "I"))
	for _, c := range []struct {
		name string
		b    []byte
		want []byte // nil: it is not
	}{
		{"COMMIT", m('Q', "COMMIT\x00"), end},
		{"END with comments", m('Q', " /* a */ end work ; -- b\x00"), end},
		{"AND NO CHAIN", m('Q', "commit transaction and no chain\x00"), end},
		{"what follows", join(m('Q', "commit\x00"), m('Q', "begin\x00")), end},
		{"AND CHAIN", m('Q', "commit and chain\x00"), join(m('C', "COMMIT\x00"), m('Z', "T"))},
		{"AND CHAIN, extended", join(parse("commit work and chain"), bind, execute, sync), join(m('1', ""), m('2', ""), m('C', "COMMIT\x00"), m('Z', "T"))},
		{"AND CHAIN, prepared", join(m('B', "\x00e\x00\x00\x00\x00\x00\x00\x00"), execute, sync), nil},
		{"ROLLBACK", m('Q', "rollback\x00"), nil},
		{"PREPARE TRANSACTION", m('Q', "prepare transaction 'x'\x00"), nil},
		{"COMMIT PREPARED", m('Q', "commit prepared 'x'\x00"), nil},
		{"two statements", m('Q', "commit; begin\x00"), nil},
		{"two statements the other way", m('Q', "select 1; commit\x00"), nil},
		{"empty", m('Q', "\x00"), nil},
		{"cut", m('Q', "commit\x00")[:9], nil},
		{"extended", join(parse("commit"), bind, describe, execute, sync), join(m('1', ""), m('2', ""), m('n', ""), end)},
		{"extended, of a statement", join(parse("END"), describeStatement, bind, execute, sync), join(m('1', ""), m('t', "\x00\x00"), m('n', ""), m('2', ""), end)},
		{"extended without Describe", join(parse("commit"), bind, execute, sync, m('X', "")), join(m('1', ""), m('2', ""), end)},
		{"extended, cut", join(parse("commit"), bind, execute), nil},
		{"extended, not executed", join(parse("commit"), bind, sync), nil},
		{"extended, executed twice", join(parse("commit"), bind, execute, execute, sync), nil},
		{"extended, and more", join(parse("commit"), bind, execute, parse("begin"), bind, execute, sync), nil},
		{"extended with a Flush", join(parse("commit"), bind, m('H', ""), execute, sync), nil},
		{"extended with a name", join(m('P', "c\x00commit\x00\x00\x00"), m('B', "\x00c\x00\x00\x00\x00\x00\x00\x00"), execute, sync), nil},
		{"extended of another statement", join(parse("commit"), m('B', "\x00c\x00\x00\x00\x00\x00\x00\x00"), execute, sync), nil},
		{"extended, another one", join(parse("select 1"), bind, execute, sync), nil},
		{"extended with a format", join(parse("commit"), m('B', "\x00\x00\x00\x01\x00\x01\x00\x00\x00\x00"), execute, sync), join(m('1', ""), m('2', ""), end)},
		{"extended with a parameter", join(parse("commit"), m('B', "\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01x\x00\x00"), execute, sync), nil},
		{"extended with a parameter and its format", join(parse("commit"), m('B', "\x00\x00\x00\x01\x00\x01\x00\x01\x00\x00\x00\x01x\x00\x00"), execute, sync), nil},
		{"extended with a type", join(m('P', "\x00commit\x00\x00\x01\x00\x00\x00\x00"), bind, execute, sync), nil},
		{"extended with a Bind that is cut", join(parse("commit"), m('B', "\x00\x00\x00"), execute, sync), nil},
		{"a prepared one", join(named, execute, sync), join(m('2', ""), end)},
		{"a prepared one, described", join(named, describe, execute, sync), join(m('2', ""), m('n', ""), end)},
		{"a prepared one, described before", join(m('D', "Sc\x00"), named, execute, sync), join(m('t', "\x00\x00"), m('n', ""), m('2', ""), end)},
		{"a prepared one, and what follows", join(named, execute, sync, m('Q', "begin\x00")), join(m('2', ""), end)},
		{"a prepared one, cut", join(named, execute), nil},
		{"a prepared one, executed twice", join(named, execute, named, execute, sync), nil},
		{"a prepared one, and another", join(named, execute, m('B', "\x00d\x00\x00\x00\x00\x00\x00\x00"), execute, sync), nil},
		{"a prepared one after another", join(m('B', "\x00d\x00\x00\x00\x00\x00\x00\x00"), execute, named, execute, sync), nil},
		{"another prepared one", join(m('B', "\x00d\x00\x00\x00\x00\x00\x00\x00"), execute, sync), nil},
		{"one whose name goes on", join(m('B', "\x00cc\x00\x00\x00\x00\x00\x00\x00"), execute, sync), nil},
		{"a prepared one to a portal with a name", join(m('B', "c\x00c\x00\x00\x00\x00\x00\x00\x00"), m('E', "c\x00\x00\x00\x00\x00"), sync), nil},
		{"a portal with a name", join(named, m('E', "c\x00\x00\x00\x00\x00"), sync), nil},
		{"a prepared one with a Bind that is cut", join(m('B', "\x00c"), execute, sync), nil},
		{"a prepared one with a parameter", join(m('B', "\x00c\x00\x00\x00\x00\x01\x00\x00\x00\x01x\x00\x00"), execute, sync), nil},
		{"a Describe of a portal first", join(m('D', "Pc\x00"), named, execute, sync), nil},
		{"a Describe of another one", join(m('D', "Sd\x00"), named, execute, sync), nil},
	} {
		if got := Done(c.b, Committing(map[string]string{"c": "commit", "e": "commit and chain", "d": "select 1", "": "commit"}).Has); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// The answer to the probe is swallowed and read, whatever comes between; what follows it is the client's.
func TestSwallow(t *testing.T) {
	file := m('V', "\x00\x00\x00\x18000000020000000000000003")
	number, none, inBlock, failed := m('V', "\x00\x00\x00\x03741"), m('V', "\xff\xff\xff\xff"), m('Z', "T"), m('Z', "E")
	bad := m('E', "SERROR\x00VERROR\x00C57014\x00Mcanceling statement\x00\x00")
	notice, commit, idle := m('N', "SWARNUNG\x00VWARNING\x00\x00"), m('C', "COMMIT\x00"), m('Z', "I")
	debug := m('N', "SDEBUG\x00VDEBUG\x00MCommitTransaction\x00\x00")
	parsed, bound := m('1', ""), m('2', "")
	done := join(parsed, bound, commit, idle)
	for _, c := range []struct {
		name     string
		messages [][]byte
		heard    []byte
		known    bool
		xid      uint64
		rest     []byte
	}{
		{"nothing yet", nil, nil, false, 0, done},
		{"a part", [][]byte{number, inBlock, file}, nil, false, 741, done},
		{"all", [][]byte{number, inBlock, file, inBlock}, nil, true, 741, done},
		{"no number", [][]byte{none, inBlock, file, inBlock}, nil, true, 0, done},
		{"a notice between", [][]byte{number, notice, inBlock, file, inBlock, notice}, join(notice, notice), true, 741, done},
		{"messages of each statement", [][]byte{debug, number, debug, inBlock, debug, file, inBlock, debug, parsed}, join(debug, parsed), true, 741, join(bound, commit, idle)},
		{"the beginning of the answer", [][]byte{number, inBlock, file, inBlock, parsed, bound, notice}, join(parsed, bound, notice), true, 741, join(commit, idle)},
		{"the answer", [][]byte{number, inBlock, file, inBlock, parsed, bound, commit}, join(parsed, bound, commit), false, 741, join(commit, idle)},
		{"another answer", [][]byte{number, inBlock, file, inBlock, bound}, bound, false, 741, done},
		{"an error of the COMMIT", [][]byte{number, inBlock, file, inBlock, bad, idle}, join(bad, idle), false, 741, done},
		{"an error of the probe", [][]byte{bad, failed, bad, failed, parsed, bound, m('C', "ROLLBACK\x00"), idle}, join(bad, idle), false, 0, done},
		{"an error of its second part", [][]byte{number, inBlock, bad, failed, parsed, bound, m('C', "ROLLBACK\x00"), idle}, join(bad, idle), false, 741, done},
		{"a result that is cut", [][]byte{m('V', "\x00\x00\x00\x09741"), inBlock, file, inBlock}, nil, false, 0, done},
		{"no result", [][]byte{inBlock, file, inBlock}, nil, false, 0, done},
		{"a number that is none", [][]byte{m('V', "\x00\x00\x00\x01x"), inBlock, file, inBlock}, nil, false, 0, done},
		{"a file that is none", [][]byte{number, inBlock, m('V', "\x00\x00\x00\x01x"), inBlock}, nil, false, 741, done},
		{"no file", [][]byte{number, inBlock, none, inBlock}, nil, false, 741, done},
	} {
		x := New(done, 0)
		var heard []byte
		for _, b := range c.messages {
			if !x.Swallow(b) {
				heard = append(heard, b...)
			}
		}
		if !bytes.Equal(heard, c.heard) || x.Known() != c.known || x.Xid != c.xid || !bytes.Equal(x.Done(), c.rest) {
			t.Errorf("%s: heard %q, known %v, %d, left %q", c.name, heard, x.Known(), x.Xid, x.Done())
		}
		if c.known && x.Timeline != 2 {
			t.Errorf("%s: timeline %d", c.name, x.Timeline)
		}
	}
	x := New(done, 7) // a backend that has told its timeline is asked for the number only
	if n := len(x.Probe()); n == 0 || len(New(done, 0).Probe()) <= n || !x.Swallow(number) || x.Known() || !x.Swallow(inBlock) || !x.Known() || x.Timeline != 7 || x.Xid != 741 {
		t.Errorf("the second time: %+v", x)
	}
}

// Messages are held until they are whole, up to the end of the answer. The client gets those that are too long.
func TestHolds(t *testing.T) {
	row, inBlock := m('V', "\x00\x00\x00\x03741"), m('Z', "T")
	long := m('A', string(make([]byte, maxHeld)))
	x := New(join(m('1', ""), m('C', "COMMIT\x00"), m('Z', "I")), 1)
	for _, typ := range []byte("VCZENSA12tn") {
		for n := 1; n <= headerLength+2; n++ {
			if part := m(typ, "rest")[:n]; !x.Holds(part) {
				t.Errorf("%q is passed on in part", part)
			}
		}
	}
	if x.Holds(long[:headerLength]) {
		t.Error("a long message is held")
	}
	x.Passed('A')
	_, _, _ = x.Swallow(row), x.Swallow(inBlock), x.Swallow(m('1', ""))
	if !x.Known() || !x.Holds(m('C', "COMMIT\x00")[:3]) {
		t.Error("the outcome cannot be asked for after a notification")
	}
	if x.Passed('E'); x.Known() || x.Holds(row[:3]) {
		t.Error("the client was told, and the outcome is asked for")
	}
	y := New(nil, 1)
	y.Passed('E')
	if _ = y.Swallow(m('Z', "E")); !y.Refused() || y.Known() {
		t.Error("the probe has failed, and that was not noticed")
	}
	for _, z := range []*Commit{New(nil, 1), New(nil, 1).InBatch(0)} {
		_ = z.Swallow(m('3', "")) // of a batch, where the question begins
		_ = z.Swallow(m('E', "SERROR\x00VERROR\x00C57014\x00\x00"))
		if z.Refused() || z.Known() {
			t.Error("a cancel request ends the asking, or its COMMIT can be asked for")
		}
	}
}

// Before COMMIT AND CHAIN the characteristics of the transaction are asked for, too. The outcome cannot be asked for
// without them.
func TestChain(t *testing.T) {
	done := join(m('C', "COMMIT\x00"), m('Z', "T"))
	number, inBlock, file := m('V', "\x00\x00\x00\x03741"), m('Z', "T"), m('V', "\x00\x00\x00\x18000000020000000000000003")
	text := func(s string) []byte { return m('V', "\x00\x00\x00"+string(rune(len(s)))+s) }
	for _, c := range []struct{ isolation, readOnly, deferrable, want string }{
		{"read committed", "off", "off", "begin isolation level read committed, read write, not deferrable"},
		{"serializable", "on", "on", "begin isolation level serializable, read only, deferrable"},
		{"serializable; drop", "on", "on", ""},
		{"repeatable read", "", "on", ""},
		{"repeatable read", "on", "x", ""},
	} {
		x := New(done, 0)
		if n := bytes.Count(x.Probe(), m('F', "")[:1]); n < 5 {
			t.Errorf("%d questions: %q", n, x.Probe())
		}
		for i, b := range [][]byte{number, text(c.isolation), text(c.readOnly), text(c.deferrable), file} {
			if x.Known() || !x.Swallow(b) || !x.Swallow(inBlock) {
				t.Errorf("%+v: answer %d", c, i)
			}
		}
		if x.Known() != (c.want != "") || x.Known() && (x.Begin() != c.want || x.Xid != 741 || x.Timeline != 2) {
			t.Errorf("%+v: known %v, %d on %d, %q", c, x.Known(), x.Xid, x.Timeline, x.Begin())
		}
	}
	if x := New(join(m('C', "COMMIT\x00"), m('Z', "I")), 0); x.Begin() != "" {
		t.Errorf("without AND CHAIN %q", x.Begin())
	}
}

// The answer to the question in a batch begins behind those to the messages before it, and with none of them. If one of
// these fails, the client gets everything.
func TestSwallowInABatch(t *testing.T) {
	done := join(m('1', ""), m('2', ""), m('C', "COMMIT\x00"), m('Z', "I"))
	closed, parsed, bound, tag := m('3', ""), m('1', ""), m('2', ""), m('C', "SELECT 1\x00")
	row := func(s string) []byte { return m('D', "\x00\x01\x00\x00\x00"+string(rune(len(s)))+s) }
	value := row("741,000000020000000000000003,read committed,off,off")
	answer := func(value []byte) [][]byte { return [][]byte{closed, parsed, bound, value, tag, closed} }
	bad, notice := m('E', "SERROR\x00VERROR\x00C57014\x00Mcanceling\x00\x00"), m('N', "SDEBUG\x00VDEBUG\x00\x00")
	before := [][]byte{parsed, closed, notice, bound, row("1,000000090000000000000003,read committed,off,off"), tag}
	after := [][]byte{parsed, bound}
	type messages = [][]byte
	for _, c := range []struct {
		name   string
		all    []messages
		heard  messages
		known  bool
		failed bool
		xid    uint64
	}{
		{"nothing yet", nil, nil, false, false, 0},
		{"what is before", []messages{before}, before, false, false, 0},
		{"a part", []messages{before, answer(value)[:4]}, before, false, false, 741},
		{"all", []messages{before, answer(value)}, before, true, false, 741},
		{"none that wrote", []messages{before, answer(row(",000000020000000000000003,read committed,off,off"))}, before, true, false, 0},
		{"and the beginning of the answer", []messages{before, answer(value), after}, append(append(messages{}, before...), after...), true, false, 741},
		{"and the answer", []messages{before, answer(value), after, {m('C', "COMMIT\x00")}}, append(append(messages{}, before...), parsed, bound, m('C', "COMMIT\x00")), false, false, 741},
		{"an error before", []messages{before[:2], {bad, m('Z', "E")}}, append(append(messages{}, before[:2]...), bad, m('Z', "E")), false, false, 0},
		{"an error of the question", []messages{before, {closed, parsed, bad, m('Z', "E")}}, append(append(messages{}, before...), bad, m('Z', "E")), false, true, 0},
		{"an error of the COMMIT", []messages{before, answer(value), {parsed, bound, bad, m('Z', "I")}}, append(append(messages{}, before...), parsed, bound, bad, m('Z', "I")), false, false, 741},
		{"a row that is none", []messages{before, answer(row("741"))}, before, false, false, 0},
		{"a number that is none", []messages{before, answer(row("x,000000020000000000000003,read committed,off,off"))}, before, false, false, 0},
		{"a file that is none", []messages{before, answer(row("741,x,read committed,off,off"))}, before, false, false, 741},
	} {
		x := New(done, 0).InBatch(1)
		var heard []byte
		for _, list := range c.all {
			for _, b := range list {
				if !x.Swallow(b) {
					heard = append(heard, b...)
				}
			}
		}
		if !bytes.Equal(heard, join(c.heard...)) || x.Known() != c.known || x.failed != c.failed || x.Xid != c.xid {
			t.Errorf("%s: heard %q, known %v, failed %v, %d", c.name, heard, x.Known(), x.failed, x.Xid)
		}
		if c.known && x.Timeline != 2 {
			t.Errorf("%s: timeline %d", c.name, x.Timeline)
		}
	}
	x := New(done, 0).InBatch(0)
	if x.Passed('D'); x.failed || x.Known() {
		t.Error("a long row before the question")
	}
	if x.Passed('E'); x.failed || x.Holds(nil) || x.Swallow(closed) {
		t.Error("a long error before the question")
	}
	if !New(done, 0).InBatch(0).EndsBatch() || New(done, 0).EndsBatch() {
		t.Error("a batch is none, or none is one")
	}
}

// The number that is told before an earlier request is that of the COMMIT, of which nothing is asked then.
func TestEarly(t *testing.T) {
	number, none, inBlock, failed := m('V', "\x00\x00\x00\x03741"), m('V', "\xff\xff\xff\xff"), m('Z', "T"), m('Z', "E")
	file, canceled := m('V', "\x00\x00\x00\x18000000020000000000000003"), m('E', "SERROR\x00VERROR\x00C57014\x00\x00")
	row, answer := m('D', "\x00\x00"), m('C', "SELECT 1\x00")
	for _, c := range []struct {
		name     string
		messages [][]byte
		heard    []byte
		want     Number
	}{
		{"told", [][]byte{number, inBlock, file, inBlock, row, answer, inBlock}, join(row, answer, inBlock), Number{741, 2}},
		{"none", [][]byte{none, inBlock, file, inBlock, row, answer, inBlock}, join(row, answer, inBlock), Number{0, 2}},
		{"not yet", [][]byte{number, inBlock, file}, nil, Number{}},
		{"canceled", [][]byte{canceled, failed, canceled, failed, canceled, failed}, join(canceled, failed), Number{}},
	} {
		e := Early(0)
		var heard []byte
		for _, b := range c.messages {
			if !e.Swallow(b) {
				heard = append(heard, b...)
			}
			if e.Known() {
				t.Errorf("%s: it is taken for a COMMIT", c.name)
			}
		}
		if got := e.Number(); got != c.want || !bytes.Equal(heard, c.heard) {
			t.Errorf("%s: %v, heard %q", c.name, got, heard)
		}
	}
	if len(Early(2).Probe()) >= len(Early(0).Probe()) {
		t.Error("the timeline is asked for twice")
	}
	done := join(m('C', "COMMIT\x00"), m('Z', "I"))
	c := Numbered(done, Number{741, 2})
	if !c.Answered() || !c.Known() || c.Xid != 741 || c.Timeline != 2 || c.EndsBatch() || c.Number() != (Number{}) {
		t.Errorf("%+v", c)
	}
	if c.Swallow(m('N', "SWARNING\x00\x00")) || !c.Known() || c.Swallow(m('C', "COMMIT\x00")) || c.Known() {
		t.Error("the answer to the COMMIT is not followed")
	}
}
