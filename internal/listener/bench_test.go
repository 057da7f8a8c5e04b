package listener

import (
	"net"
	"testing"
)

type sink struct{ net.Conn }

func (sink) Write(b []byte) (int, error) { return len(b), nil }

// What the relay itself adds to one SELECT in the extended protocol: following the request and the answer.
func BenchmarkRelayedSelect(b *testing.B) {
	x := &session{srv: &Server{}, guarded: true, onPrimary: true, client: sink{}}
	x.status.Store('I')
	var request, reply []byte
	request = appendMessage(request, 'B', []byte("\x00P0_1\x00\x00\x00\x00\x01\x00\x00\x00\x0512345\x00\x00"))
	request = appendMessage(appendMessage(appendMessage(request, 'D', []byte("P\x00")), 'E', make([]byte, 5)), 'S', nil)
	reply = appendMessage(appendMessage(reply, '2', nil), 'T', make([]byte, 29))
	reply = appendMessage(appendMessage(reply, 'D', make([]byte, 11)), 'C', []byte("SELECT 1\x00"))
	reply = appendMessage(reply, 'Z', []byte{'I'})
	var f framer
	for b.Loop() {
		if _, _, err := x.release(&f, request); err != nil {
			b.Fatal(err)
		}
		if _, err := x.pass(reply, 0); err != nil {
			b.Fatal(err)
		}
	}
}
