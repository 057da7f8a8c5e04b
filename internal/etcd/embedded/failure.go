package embedded

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"

	"go.uber.org/zap/zapcore"
)

// ErrFailed means that etcd gave up because its disk is full or failed. Its remains in this process do not answer and
// hold its files locked, so only a new process can start the member again.
var ErrFailed = errors.New("the quorum member gave up")

// failure keeps etcd from ending the process when it gives up. When etcd logs a fatal error, failure blocks the
// goroutine that met it for ever. Nothing after that point happens, as if the process had ended there, so nothing is
// acknowledged that was not written; but the node's server keeps its agent. It can be neither undone nor cleaned up,
// since etcd holds locks there.
type failure struct {
	once sync.Once
	why  error
	done chan struct{} // closed once why is set
}

func newFailure() *failure { return &failure{done: make(chan struct{})} }

// OnWrite makes a failure the hook of etcd's fatal errors and panics. It does not return.
func (f *failure) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	enc := zapcore.NewMapObjectEncoder()
	for _, x := range fields {
		x.AddTo(enc)
	}
	why := ce.Message
	for _, name := range []string{"error", "panic"} {
		if v, ok := enc.Fields[name]; ok {
			why = fmt.Sprintf("%s: %v", why, v)
		}
	}
	f.once.Do(func() {
		f.why = fmt.Errorf("%w: %s", ErrFailed, why)
		if strings.Contains(why, syscall.ENOSPC.Error()) {
			f.why = fmt.Errorf("%w: %w", f.why, ErrNoSpace)
		}
		close(f.done)
	})
	select {}
}

func (f *failure) err() error {
	select {
	case <-f.done:
		return f.why
	default:
		return nil
	}
}

// seclude takes a failed member off the network: its raft may still hold the lead of the quorum, although nothing
// applies its entries any more. If the member does not fail, seclude ends with it.
func (m *Member) seclude() {
	select {
	case <-m.failure.done:
	case <-m.server.StopNotify():
		return
	}
	m.server.PauseSending()
	_ = m.services.peers.Close()
	_ = m.services.clients.Close()
	_ = m.services.http.Close()
	if g := m.grpc.Load(); g != nil {
		g.Stop()
	}
}
