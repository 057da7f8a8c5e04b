package endpoint

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/endpoint/link/linktest"
)

// damaging is a path on which bytes are flipped, left out, repeated or reordered, once for each request, after the
// handshake.
type damaging struct {
	to   string
	due  atomic.Int32
	done [4]atomic.Int32
}

// start returns the address of the path.
func (d *damaging) start(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", d.to)
			if err != nil {
				_ = a.Close()
				continue
			}
			t.Cleanup(func() { _, _ = a.Close(), b.Close() })
			wg.Go(func() { d.pass(a, b) })
			wg.Go(func() { d.pass(b, a) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		t.Cleanup(wg.Wait)
	})
	return l.Addr().String()
}

func (d *damaging) pass(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	var held []byte
	passed := 0
	for b := make([]byte, 16<<10); ; {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		out := b[:n]
		passed += n
		if passed > 64<<10 && n > 100 && d.due.CompareAndSwap(1, 0) {
			how := rand.IntN(4)
			d.done[how].Add(1)
			switch how {
			case 0:
				out[rand.IntN(n)] ^= 1 << rand.IntN(8)
			case 1:
				out = out[:n/2]
			case 2:
				out = append(bytes.Clone(out), out...)
			case 3:
				held = bytes.Clone(out)
				continue
			}
		}
		if _, err := to.Write(append(out, held...)); err != nil {
			return
		}
		held = nil
	}
}

// TestDamagedWay flips, drops, repeats and reorders bytes while both sides write: the data arrives as it was written.
func TestDamagedWay(t *testing.T) {
	t.Parallel()
	d := &damaging{}
	n := newPathBy(t, link.PreferTCP, func(c *Conn) link.Transport { return c }, func(addr string) (tcp, quic string) {
		d.to = addr
		return d.start(t), addr
	})
	p := linktest.Open(t, n, linktest.Config("ZSTD"))
	stop := make(chan struct{})
	var damage sync.WaitGroup
	damage.Go(func() {
		for {
			d.due.Store(1)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	linktest.BothWays(t, p, 16<<20)
	close(stop)
	damage.Wait()
	if p.Near.Status().Resent+p.Far.Status().Resent == 0 {
		t.Errorf("nothing was sent again after %d flips, %d cuts, %d replays and %d changes of order", d.done[0].Load(), d.done[1].Load(), d.done[2].Load(), d.done[3].Load())
	}
}
