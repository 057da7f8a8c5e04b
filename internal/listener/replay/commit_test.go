package replay

import (
	"bytes"
	"testing"
)

// A COMMIT of which it will be known whether it was executed is kept as the request without an answer. It is never
// among those that are executed again.
func TestLogKeepsACommit(t *testing.T) {
	named := append(extended("the_commit", ""), sync...)
	for _, commit := range [][]byte{query("commit"), append(extended("", "commit"), sync...), named} {
		for _, size := range []int{1, 6, 1 << 20} {
			begun := func() *client {
				c := newClient(new(Memory), size)
				c.send(query("begin"))
				c.hears(m('C', "BEGIN\x00"), m('Z', "T"))
				c.send(query("insert into t values (1)"))
				c.hears(answer("1", 'T'))
				return c
			}
			c := begun()
			c.log.Commits()
			c.send(commit)
			if why := c.log.Refusal(nil); why != "" || !bytes.Equal(c.log.Unanswered(), commit) {
				t.Errorf("%q: %s, unanswered %q", commit, why, c.log.Unanswered())
			}
			r := c.log.Run()
			for request := r.Next(); request != nil; request = r.Next() {
				if bytes.Contains(request, []byte("commit")) {
					t.Errorf("executed again: %q", request)
				}
			}
			if r.Requests() != 2 {
				t.Errorf("%d requests", r.Requests())
			}
			c.hears(m('C', "COMMIT\x00")) // the client has a part of its answer
			if why := c.log.Refusal(nil); why != Answering {
				t.Errorf("with a part of the answer: %q", why)
			}
			c.hears(m('Z', "I"))
			if c.log.On() || c.log.memory.Used() != 0 {
				t.Error("it is kept after its end")
			}
			c = begun()
			c.log.Commits()
			c.send(commit, query("select 1"))
			if why := c.log.Refusal(nil); why != Outstanding {
				t.Errorf("with a request behind it: %q", why)
			}
			c = begun()
			c.send(commit)
			if why := c.log.Refusal(nil); why != NotTwice {
				t.Errorf("one of which nothing will be known: %q", why)
			}
			c = begun()
			c.log.Repeats()
			c.log.Commits()
			c.send(commit)
			if why := c.log.Refusal(nil); why != Repeated {
				t.Errorf("the second time: %q", why)
			}
		}
	}
}

// A COMMIT AND CHAIN that was executed ends what is executed again, though a block is open behind it.
func TestLogEndsWithACommitAndChain(t *testing.T) {
	c := newClient(new(Memory), 1<<20)
	c.send(query("begin"))
	c.hears(m('C', "BEGIN\x00"), m('Z', "T"))
	c.log.Commits()
	c.send(query("commit and chain"))
	c.hears(m('C', "COMMIT\x00"), m('Z', "T"))
	c.send(query("insert into t values (1)"))
	if why := c.log.Refusal(nil); why != NotKept || c.log.Run().Next() != nil {
		t.Errorf("%q, and %q would be executed again", why, c.log.Run().Next())
	}
}
