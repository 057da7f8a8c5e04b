package replay

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

func m(typ byte, body string) []byte { return pgwire.AppendMessage(nil, typ, []byte(body)) }

func query(text string) []byte { return m('Q', text+"\x00") }

var sync = m('S', "")

// extended is a statement of the extended protocol up to its Execute.
func extended(name, text string) (b []byte) {
	if text != "" {
		b = m('P', name+"\x00"+text+"\x00\x00\x00")
	}
	b = append(b, m('B', "\x00"+name+"\x00\x00\x00\x00\x00\x00\x00")...)
	return append(b, m('E', "\x00\x00\x00\x00\x00")...)
}

// answer is one of a statement that returns a row, and ends in that status.
func answer(row string, status byte) []byte {
	b := append(m('D', row), m('C', "SELECT 1\x00")...)
	return append(b, m('Z', string(status))...)
}

// client feeds a log as a session does: whole messages in pieces of that size.
type client struct {
	log    *Log
	size   int
	status byte
	owed   int
	synced bool // nothing was sent since the last Sync or Query
}

// prepared are the statements that were prepared before.
func prepared(name string) (text string, known bool) {
	text, known = map[string]string{"begin": "begin", "other": "select 1; begin"}[name]
	return text, known
}

func newClient(mem *Memory, size int) *client {
	return &client{log: New(mem, prepared), size: size, status: 'I', synced: true}
}

func (c *client) send(messages ...[]byte) {
	eachMessage(bytes.Join(messages, nil), c.size, func(typ byte, piece []byte, begun, whole bool) {
		c.log.Sent(piece, begun, whole, begun && c.status == 'I' && c.owed == 0 && c.synced)
		if whole {
			if c.synced = typ == 'Q' || typ == 'S'; c.synced {
				c.owed++
			}
		}
	})
}

func (c *client) hears(messages ...[]byte) {
	eachMessage(bytes.Join(messages, nil), c.size, func(typ byte, piece []byte, _, whole bool) {
		c.log.Answered(typ, piece, whole)
		if whole && typ == 'Z' {
			c.status = piece[len(piece)-1]
			c.owed--
		}
	})
}

func eachMessage(b []byte, size int, f func(typ byte, piece []byte, begun, whole bool)) {
	var frame pgwire.Framer
	for len(b) > 0 {
		begun := frame.AtBoundary()
		n, whole, err := frame.Next(b[:min(size, len(b))])
		if err != nil {
			panic(err)
		}
		f(frame.Type(), b[:n], begun, whole)
		b = b[n:]
	}
}

func TestLogKeepsATransaction(t *testing.T) {
	for _, size := range []int{1, 6, 1 << 20} {
		mem := new(Memory)
		c := newClient(mem, size)
		c.send(query("select 1"))
		if c.log.On() {
			t.Error("a statement alone is kept")
		}
		c.hears(answer("1", 'I'))
		requests := [][]byte{query("begin"), slicesConcat(extended("", "insert into t values (1)"), extended("named", ""), sync), query("select 2")}
		answers := [][]byte{append(m('C', "BEGIN\x00"), m('Z', "T")...), append(m('A', "a notification"), answer("insert", 'T')...), answer("2", 'T')}
		for i := range requests {
			c.send(requests[i])
			c.hears(answers[i])
		}
		c.send(query("select 3"))
		texts := map[string]string{"named": "select 4"}
		if why := c.log.Refusal(texts); why != "" {
			t.Fatal(why)
		}
		if got := c.log.Unanswered(); !bytes.Equal(got, query("select 3")) {
			t.Errorf("unanswered: %q", got)
		}
		for different := range len(requests) + 1 {
			r := c.log.Run()
			for i := 0; ; i++ {
				request := r.Next()
				if request == nil {
					if i != len(requests) {
						t.Errorf("%d requests", i)
					}
					break
				}
				if !bytes.Equal(request, requests[i]) {
					t.Fatalf("request %d: %q", i, request)
				}
				b := bytes.Clone(answers[i])
				b = append(b, m('A', "later")...)
				if i == different {
					b = bytes.Replace(b, []byte(" 1"), []byte(" 2"), 1)
					b = bytes.Replace(b, []byte("BEGIN"), []byte("BEGUN"), 1)
				}
				used, v := r.Feed(b)
				if (v == Same) != (i != different) || v == Pending || used != len(b)-len(m('A', "later")) {
					t.Fatalf("answer %d of %d: %d of %d bytes, verdict %d", i, different, used, len(b), v)
				}
				if v == Different {
					if r.Next() != nil {
						t.Error("it goes on")
					}
					break
				}
			}
		}
		if why := c.log.Refusal(map[string]string{"named": "select setval('s', 1)"}); why != NotTwice {
			t.Errorf("a named statement: %q", why)
		}
		c.hears(answer("3", 'T'))
		c.send(query("select 4"))
		c.hears(answer("4", 'I')) // whatever ended it
		if c.log.On() || mem.Used() != 0 {
			t.Errorf("%d bytes are in use", mem.Used())
		}
	}
}

func slicesConcat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func TestLogRefuses(t *testing.T) {
	begin := append(m('C', "BEGIN\x00"), m('Z', "T")...)
	for _, c := range []struct {
		name string
		do   func(c *client)
		why  string
	}{
		{"nothing wrong", func(*client) {}, ""},
		{"COMMIT", func(c *client) { c.send(query("commit")) }, NotTwice},
		{"a function", func(c *client) { c.send(query("select f()")); c.hears(answer("1", 'T')) }, NotTwice},
		{"setval", func(c *client) { c.send(extended("", "select setval('s', 1)"), sync) }, NotTwice},
		{"COPY", func(c *client) { c.send(m('d', "x")) }, NotTwice},
		{"a function call", func(c *client) { c.send(m('F', "x")) }, NotTwice},
		{"a new named statement", func(c *client) { c.send(extended("x", "select 1"), sync) }, NotTwice},
		{"a closed statement", func(c *client) { c.send(m('C', "Sx\x00"), sync) }, NotTwice},
		{"an unknown named statement", func(c *client) { c.send(extended("x", ""), sync) }, NotTwice},
		{"a setting", func(c *client) { c.send(query("select 1")); c.hears(m('S', "x\x00y\x00"), answer("1", 'T')) }, Reported},
		{"half an answer", func(c *client) { c.send(query("select 1")); c.hears(m('T', "x")) }, Answering},
		{"a notification", func(c *client) { c.send(query("select 1")); c.hears(m('A', "x")) }, ""},
		{"two requests", func(c *client) { c.send(query("select 1"), query("select 2")) }, Outstanding},
		{"two requests, of which one is answered", func(c *client) { c.send(query("select 1"), query("select 2")); c.hears(answer("1", 'T')) }, ""},
		{"half a batch", func(c *client) { c.send(extended("", "select 1")) }, Outstanding},
		{"too long", func(c *client) { c.send(query("select '" + strings.Repeat("x", maxSession) + "'")) }, TooLong},
		{"too many", func(c *client) {
			for range 1 << 12 {
				c.send(query(fmt.Sprintf("select '%s'", strings.Repeat("x", 1<<10))))
				c.hears(answer("1", 'T'))
			}
		}, TooLong},
		{"an answer too many", func(c *client) { c.hears(answer("1", 'T')) }, NotKept},
		{"an end that nobody saw", func(c *client) {
			c.send(query("select 1"))
			c.hears(answer("1", 'I'))
			c.send(query("select 1"))
			c.hears(answer("1", 'T'))
		}, NotKept},
		{"a block behind another request", func(c *client) {
			c.send(query("commit"))
			c.hears(answer("1", 'I'))
			c.send(query("select 1"), query("begin"))
			c.hears(answer("1", 'I'), begin)
		}, NotKept},
	} {
		mem := new(Memory)
		l := newClient(mem, 1<<20)
		l.send(query("begin"))
		l.hears(begin)
		c.do(l)
		if why := l.log.Refusal(nil); why != c.why {
			t.Errorf("%s: %q, want %q", c.name, why, c.why)
		}
		l.log.Close()
		l.status, l.owed, l.synced = 'I', 0, true
		l.send(query("begin"))
		if mem.Used() != 0 || l.log.On() {
			t.Errorf("%s: %d bytes are in use", c.name, mem.Used())
		}
	}
}

// A transaction may begin by a prepared statement.
func TestLogOfAPreparedBegin(t *testing.T) {
	for name, why := range map[string]string{"begin": "", "other": NotKept, "unknown": NotKept} {
		mem := new(Memory)
		c := newClient(mem, 1<<20)
		c.send(extended(name, ""), extended("", "insert into t values (1)"), sync)
		c.hears(answer("1", 'T'))
		if got := c.log.Refusal(map[string]string{"begin": "begin"}); got != why {
			t.Errorf("%s: %q, want %q", name, got, why)
		}
		if name == "begin" && c.log.Refusal(map[string]string{"begin": "commit"}) != NotTwice {
			t.Error("a statement that is another one now is executed again")
		}
		c.log.Close()
		if mem.Used() != 0 {
			t.Errorf("%s: %d bytes are in use", name, mem.Used())
		}
	}
}

func TestMemoryOfAllIsBounded(t *testing.T) {
	mem := new(Memory)
	kept := 0
	for range 3 * maxAll / maxSession {
		c := newClient(mem, 1<<20)
		c.send(query("begin"), query("select '"+strings.Repeat("x", maxSession-100)+"'"))
		if c.log.On() {
			kept++
		} else if why := c.log.Refusal(nil); why != TooMany {
			t.Fatal(why)
		}
	}
	if kept == 0 || kept > maxAll/maxSession+1 || mem.Used() > maxAll {
		t.Errorf("%d are kept, %d bytes", kept, mem.Used())
	}
}

// FuzzLog: whatever a client sends and hears, a log that can be executed again has no statement that ends a block, is
// the same for the same answers in any pieces, and returns its memory.
func FuzzLog(f *testing.F) {
	f.Add([]byte("\x00begin\x02T\x00insert into t values (1)\x02T\x00commit\x02I"), 3)
	f.Add([]byte("\x00begin\x02T\x01select 1\x02T\x00rollback to s\x02T\x00select 2"), 1)
	f.Fuzz(func(t *testing.T, script []byte, size int) {
		mem := new(Memory)
		size = max(1, size&0xff)
		c := newClient(mem, size)
		var answers [][]byte
		for len(script) > 0 {
			op := script[0]
			n := bytes.IndexAny(script[1:], "\x00\x01\x02")
			if n < 0 {
				n = len(script) - 1
			}
			arg := string(script[1 : 1+n])
			script = script[1+n:]
			switch op {
			case 0:
				c.send(query(arg))
			case 1:
				c.send(extended("", arg), sync)
			case 2:
				if c.owed == 0 || arg == "" {
					continue
				}
				status := arg[len(arg)-1]
				if status != 'T' && status != 'E' {
					status = 'I'
				}
				a := answer(arg, status)
				c.hears(a)
				if status == 'I' || !c.log.On() {
					answers = nil
				} else {
					answers = append(answers, a)
				}
			}
		}
		if c.log.Refusal(nil) == "" {
			r := c.log.Run()
			for i := 0; ; i++ {
				request := r.Next()
				if request == nil {
					if i != len(c.log.sums) {
						t.Fatalf("%d of %d requests", i, len(c.log.sums))
					}
					break
				}
				text := request[5:]
				if request[0] == 'P' {
					text = request[6:]
				}
				begins, ok := stmt.Repeatable(text)
				if !ok || i == 0 && !begins || stmt.EndingOf(text) != stmt.EndsNothing {
					t.Fatalf("request %d: %q", i, request)
				}
				a := answers[len(answers)-len(c.log.sums)+i]
				v, used := Pending, 0
				for v == Pending && used < len(a) {
					var n int
					n, v = r.Feed(a[used:min(used+size, len(a))])
					used += n
				}
				if v != Same || used != len(a) {
					t.Fatalf("answer %d: verdict %d after %d of %d bytes", i, v, used, len(a))
				}
			}
		}
		c.log.Close()
		if mem.Used() != 0 {
			t.Fatalf("%d bytes are in use", mem.Used())
		}
	})
}
