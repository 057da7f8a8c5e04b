package endpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/endpoint/link/linktest"
)

// lossyBBR is a connection over a far and lossy path. Of its datagrams one in twenty is lost, one comes twice and one
// late.
type lossyBBR struct {
	*Conn
	asked atomic.Uint64
	mu    sync.Mutex
	rand  *rand.Rand
	late  []byte
}

func newLossyBBR(c net.Conn) *lossyBBR {
	return &lossyBBR{Conn: c.(*Conn), rand: rand.New(rand.NewPCG(11, 11))}
}

func (c *lossyBBR) Write(p []byte) (int, error) {
	time.Sleep(1200 * time.Microsecond)
	return c.Conn.Write(p)
}

func (c *lossyBBR) SendDatagram(b []byte) error {
	if c.Kind() != KindQUIC {
		return errors.ErrUnsupported
	}
	time.Sleep(1200 * time.Microsecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	late := c.late
	c.late = nil
	if late != nil {
		defer func() { _ = c.Conn.SendDatagram(late) }()
	}
	switch c.rand.IntN(20) {
	case 0:
		return nil
	case 1:
		_ = c.Conn.SendDatagram(b)
	case 2:
		c.late = bytes.Clone(b)
		return nil
	}
	return c.Conn.SendDatagram(b)
}

func (*lossyBBR) Congestion() string { return "bbr" }

func (*lossyBBR) Steer(bool) (string, error) { return "bbr", nil }

func (c *lossyBBR) Counters() (time.Duration, uint64, uint64) {
	n := c.asked.Add(1)
	return 60 * time.Millisecond, 1000 * n, 20 * n
}

// scattering is a path of TCP and QUIC over which frames travel as shards. TCP connections can be cut.
func scattering(t *testing.T) linktest.Net {
	var mu sync.Mutex
	var accepted []*Conn
	n := newPathOf(t, link.PreferAuto, func(c *Conn) link.Transport {
		mu.Lock()
		defer mu.Unlock()
		accepted = append(accepted, c)
		return newLossyBBR(c)
	})
	open := n.Open
	n.Open = func(ctx context.Context, kind string) (link.Transport, error) {
		c, err := open(ctx, kind)
		if err != nil {
			return nil, err
		}
		return newLossyBBR(c.(net.Conn)), nil
	}
	n.Cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range accepted {
			if tcp, ok := c.raw.(*net.TCPConn); ok {
				_ = tcp.CloseRead()
				_ = tcp.CloseWrite()
			}
		}
		accepted = nil
	}
	return n
}

// TestScatteredLink runs the suite on a path where datagrams are lost, doubled and overtaken.
func TestScatteredLink(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("takes a quarter of a minute: set COTERIE_LONG=1")
	}
	t.Parallel()
	linktest.Run(t, scattering)
}

// TestScatteredFrames waits until a link sends shards, and writes frames that are cut into them. Some frames are
// rebuilt from the parities.
func TestScatteredFrames(t *testing.T) {
	t.Parallel()
	p := linktest.Open(t, scattering(t), linktest.Config("OFF"))
	sent, got := sha256.New(), sha256.New()
	far := make(chan error, 1)
	go func() {
		far <- p.Far.Receive(func(b []byte) error { _, err := got.Write(b); return err })
	}()
	r := rand.New(rand.NewPCG(3, 3))
	deadline := time.Now().Add(60 * time.Second)
	for p.Far.Status().Repaired < 3 {
		if time.Now().After(deadline) {
			t.Fatalf("nothing was made again: %+v", p.Far.Status())
		}
		b := make([]byte, 2000+r.IntN(20000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		_, _ = sent.Write(b)
		if _, err := p.Near.Write(b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := p.Near.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := <-far; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("what was read is not what was written")
	}
	if s := p.Near.Status(); !s.Twice || s.SentTwice == 0 {
		t.Errorf("near: %+v", s)
	}
	if _, err := p.Far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}
