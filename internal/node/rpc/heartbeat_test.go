package rpc

import (
	"net"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/agent/liveness"
)

func TestHeartFrames(t *testing.T) {
	x, y := net.Pipe()
	a, b := NewHeartbeatStream(x), NewHeartbeatStream(y)
	for _, want := range []liveness.Heartbeat{
		{Incarnation: "n1-17-4711"}, {Epoch: 7, Sent: 3 * time.Hour}, {Epoch: 1<<63 + 1, Sent: 1}, {Farewell: true},
	} {
		sent := make(chan error, 1)
		go func() { sent <- a.Send(want) }()
		got, err := b.Receive()
		if err != nil || got != want {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	go func() { _, _ = x.Write([]byte{9}) }()
	if _, err := b.Receive(); err == nil {
		t.Error("a frame of no kind was taken")
	}
	_ = a.Close()
	if _, err := b.Receive(); err == nil {
		t.Error("a closed stream has no end")
	}
}
