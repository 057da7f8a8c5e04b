package eventloop

import (
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

func open(t *testing.T) *Loop {
	t.Helper()
	l := new(Loop)
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// talkative is a writer that calls a function when it gets a result.
type talkative struct {
	told []string
	then func(w *uring.Write)
}

func (w *talkative) Wrote(e *uring.Write) {
	w.told = append(w.told, string(e.B))
	if w.then != nil {
		w.then(e)
	}
}

// A writer that gets its result may remove others that have not got theirs yet, and queue more, which is written in the
// same turn.
func TestWritersAreToldWhileOthersGo(t *testing.T) {
	r, err := uring.New()
	if err != nil {
		t.Skip(err)
	}
	l := open(t)
	l.Batch.Use(r, new(atomic.Uint64))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) })
	var first, lost, last, late talkative
	first.then = func(*uring.Write) {
		l.Batch.Remove(&lost)
		if len(late.told) == 0 && !l.Batch.Queue(&late, pair[0], []byte("late")) {
			t.Error("there is no room while writers are told")
		}
	}
	for _, e := range []struct {
		by *talkative
		b  string
	}{{&first, "a"}, {&lost, "b"}, {&last, "c"}, {&lost, "d"}} {
		if !l.Batch.Queue(e.by, pair[0], []byte(e.b)) {
			t.Fatalf("there is no room for %s", e.b)
		}
	}
	l.Batch.Flush()
	for name, got := range map[string][]string{"a": first.told, "c": last.told, "late": late.told} {
		if !slices.Equal(got, []string{name}) {
			t.Errorf("who wrote %s was told of %q", name, got)
		}
	}
	if len(lost.told) > 0 {
		t.Errorf("who was lost was told of %q", lost.told)
	}
	if len(l.Batch.pending)+len(l.Batch.telling)+len(l.Batch.bytes) > 0 {
		t.Errorf("%d writes, %d being told and %d bytes are left", len(l.Batch.pending), len(l.Batch.pending), len(l.Batch.bytes))
	}
	got := make([]byte, 100)
	if n, err := socket.Receive(pair[1], got); err != nil || string(got[:n]) != "abcdlate" {
		t.Errorf("%q came, %v", got[:n], err)
	}
}

// A late timer must not write to a descriptor that belongs to another file by then.
func TestLoopIsDeafWhenClosed(t *testing.T) {
	var l Loop
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	l.Close()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	l.alarm = pipe[1]
	l.Post(func() {})
	if n, _ := unix.Read(pipe[0], make([]byte, 8)); n > 0 {
		t.Error("the closed loop wrote to a descriptor")
	}
}

// A port that could not accept for lack of descriptors does so again after a moment.
func TestPortOpensAgain(t *testing.T) {
	l := open(t)
	var turns sync.WaitGroup
	turns.Go(func() {
		for !l.Ending() {
			l.Turn()
		}
	})
	defer turns.Wait()
	defer l.End()
	p, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	var a Acceptor
	accepted := make(chan netip.AddrPort, 1)
	if !a.Open(l, slog.New(slog.DiscardHandler), p.(*net.TCPListener), func(fd int, from netip.AddrPort) bool { //nolint:forcetypeassert // listened so
		accepted <- from
		return false
	}) {
		t.Fatal("it is not open")
	}
	defer a.Close()
	l.Post(func() { a.pause(unix.EMFILE) })
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	select {
	case from := <-accepted:
		if from.String() != conn.LocalAddr().String() {
			t.Errorf("%s came, not %s", from, conn.LocalAddr())
		}
	case <-time.After(time.Minute):
		t.Error("nothing is accepted")
	}
}
