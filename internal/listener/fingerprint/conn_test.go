package fingerprint

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/eventloop"
	"github.com/coteriedb/coterie/internal/listener/socket"
	"github.com/coteriedb/coterie/internal/listener/uring"
)

// connOn returns a connection on a loop that is not running, whose session is one end of a pair of sockets.
func connOn(t *testing.T) (l *eventloop.Loop, a *Conn, server int) {
	t.Helper()
	r, err := uring.New()
	if err != nil {
		t.Skip(err)
	}
	l = new(eventloop.Loop)
	if err := l.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	l.Batch.Use(r, new(atomic.Uint64))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	a = New(Config{Loop: l, Patience: func() time.Duration { return time.Hour }, Life: t.Context(), Log: slog.New(slog.DiscardHandler)})
	a.opened = pair[0] // it closes that
	t.Cleanup(func() { a.Close(); _ = unix.Close(pair[1]) })
	return l, a, pair[1]
}

// Two queries of one turn go to a server that has just ended: both callers get one error each.
func TestTwoAskWhereNobodyAnswers(t *testing.T) {
	l, a, server := connOn(t)
	_ = unix.Shutdown(server, unix.SHUT_RDWR)
	said := make([]int, 2)
	for i := range said {
		if !a.Ask("postgres", "postgres", func(_ Login, ok bool) {
			if said[i]++; ok {
				t.Errorf("question %d was answered", i)
			}
		}) {
			t.Fatalf("question %d cannot be asked", i)
		}
	}
	l.Batch.Flush()
	if !slices.Equal(said, []int{1, 1}) {
		t.Errorf("who asked was told %v times", said)
	}
	if a.fd >= 0 {
		t.Error("the session is kept")
	}
}

// A query for which the batch has no room is not sent before those that are queued.
func TestQuestionsKeepTheirOrder(t *testing.T) {
	l, a, server := connOn(t)
	nobody := func(Login, bool) {}
	asked := 0
	for a.Ask("postgres", "postgres", nobody) {
		if asked++; asked > 2*uring.Size {
			t.Fatalf("%d questions of one turn were taken", asked)
		}
	}
	if asked != uring.Size || len(a.waiting) != asked {
		t.Errorf("%d questions were asked, %d wait", asked, len(a.waiting))
	}
	got := make([]byte, eventloop.BufferSize)
	if n, err := socket.Receive(server, got); !socket.WouldWait(err) {
		t.Errorf("%d bytes came before the turn's end, %v", n, err)
	}
	l.Batch.Flush()
	want := bytes.Repeat(queryOf("postgres", "postgres"), asked)
	n, err := socket.Receive(server, got)
	if err != nil || !bytes.Equal(got[:n], want) {
		t.Errorf("%d bytes came, %v, want %d", n, err, len(want))
	}
}

// A panic of a caller ends the session for fingerprints, and no other.
func TestPanicOfWhoAskedIsKept(t *testing.T) {
	l, a, server := connOn(t)
	panics := 0
	a.cfg.Panicked = func(any) { panics++ }
	second := false
	if !a.Ask("a", "b", func(Login, bool) { panic("boom") }) || !a.Ask("c", "d", func(_ Login, ok bool) { second = !ok }) {
		t.Fatal("nobody can be asked")
	}
	l.Batch.Flush()
	if _, err := socket.Transmit(server, pgwire.AppendMessage(pgwire.AppendMessage(nil, 'C', []byte("SELECT 0\x00")), 'Z', []byte{'I'})); err != nil {
		t.Fatal(err)
	}
	a.Ready(unix.EPOLLIN)
	if !second || a.fd >= 0 || panics != 1 {
		t.Errorf("the second was told: %v, the session is %d, %d panics counted", second, a.fd, panics)
	}
}

func TestAnswer(t *testing.T) {
	row := func(columns ...string) []byte {
		b := binary.BigEndian.AppendUint16(nil, uint16(len(columns)))
		for _, c := range columns {
			b = append(binary.BigEndian.AppendUint32(b, uint32(len(c))), c...)
		}
		return b
	}
	if m, ok := parse(row("text", "f", "t")); !ok || m != (Login{Text: "text", NotReusable: true}) {
		t.Errorf("%+v, %v", m, ok)
	}
	if m, ok := parse(row("", "?", "f")); !ok || !m.Exclusive {
		t.Errorf("%+v, %v", m, ok)
	}
	whole := row("text", "f", "f")
	for n := range whole {
		if _, ok := parse(whole[:n]); ok {
			t.Errorf("%d of %d bytes are an answer", n, len(whole))
		}
	}
	null := append(whole[:len(whole)-5:len(whole)-5], 0xff, 0xff, 0xff, 0xff)
	for _, b := range [][]byte{append(whole, 0), row("text", "f"), row("text", "f", "f", "f"), null} {
		if _, ok := parse(b); ok {
			t.Errorf("%q is an answer", b)
		}
	}
}
