package listener

import (
	"net"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

type sink struct{ net.Conn }

func (sink) Write(b []byte) (int, error) { return len(b), nil }

// The cost that the relay itself adds to one SELECT in the extended protocol: following the request and the answer. Of
// a session that is known its server has told the state.
func BenchmarkRelayedSelect(b *testing.B) {
	for name, known := range map[string]bool{"plain": false, "known": true} {
		b.Run(name, func(b *testing.B) { relaySelects(b, known) })
	}
}

func relaySelects(b *testing.B, known bool) {
	b.Helper()
	x := &session{srv: &Server{}, work: underway.Work{OnPrimary: true, Rules: &underway.Rules{}}, client: sink{}}
	x.work.Local = true
	x.work.Status.Store('I')
	if k := &x.work.Known; known {
		k.Follows, k.Unchanged.Brief = true, true
		k.Unchanged.Asked()
		k.Unchanged.Known(map[string]string{"P0_1": "select abalance from pgbench_accounts where aid = $1"}, true)
	}
	var request, reply []byte
	request = pgwire.AppendMessage(request, 'B', []byte("\x00P0_1\x00\x00\x00\x00\x01\x00\x00\x00\x0512345\x00\x00"))
	request = pgwire.AppendMessage(pgwire.AppendMessage(pgwire.AppendMessage(request, 'D', []byte("P\x00")), 'E', make([]byte, 5)), 'S', nil)
	reply = pgwire.AppendMessage(pgwire.AppendMessage(reply, '2', nil), 'T', make([]byte, 29))
	reply = pgwire.AppendMessage(pgwire.AppendMessage(reply, 'D', make([]byte, 11)), 'C', []byte("SELECT 1\x00"))
	reply = pgwire.AppendMessage(reply, 'Z', []byte{'I'})
	for b.Loop() {
		if _, _, err := x.way.Release(&x.work, x, request); err != nil {
			b.Fatal(err)
		}
		if _, err := x.pass(reply, 0); err != nil {
			b.Fatal(err)
		}
	}
}
