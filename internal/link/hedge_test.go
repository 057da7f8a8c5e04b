package link

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/boottime"
	"github.com/coteriedb/coterie/internal/codec"
)

// taken is a transport that keeps the frames that are written to it.
type taken struct {
	canned
	kind   string
	rate   int64
	frames [][]byte
}

func (t *taken) Write(p []byte) (int, error) {
	t.frames = append(t.frames, bytes.Clone(p))
	return len(p), nil
}

func (t *taken) Kind() string                                              { return t.kind }
func (t *taken) Congestion() string                                        { return "bbr" }
func (t *taken) Rate() int64                                               { return t.rate }
func (t *taken) Counters() (rtt time.Duration, sent, lost uint64)          { return 60 * time.Millisecond, 1, 0 }
func (t *taken) SendDatagram([]byte) error                                 { return nil }
func (t *taken) ReceiveDatagram(ctx context.Context) (b []byte, err error) { return nil, ctx.Err() }

// hedged is a link of which short frames travel twice: TCP that carries, TCP beside it, and three QUIC legs of such rates.
func hedged(rates ...int64) (c *Conn, main, beside *taken) {
	c = newConn("0123456789abcdef", "p", Config{})
	c.hedging = true
	main, beside = &taken{kind: TCP}, &taken{kind: TCP}
	c.legs = []*leg{newLeg(c, main), newLeg(c, beside)}
	for _, rate := range rates {
		c.legs = append(c.legs, newLeg(c, &taken{kind: QUIC, rate: rate}))
	}
	c.main = c.legs[0]
	return c, main, beside
}

// copies takes what is to be sent besides what the main leg carries: what goes as datagrams, and what goes by TCP.
func copies(c *Conn) (loose, tcp [][]byte) {
	for _, l := range c.legs {
		for len(l.copies) > 0 {
			x := <-l.copies
			b := x.parity
			if x.frame != nil {
				b = bytes.Clone(x.frame.buf)
				x.frame.release()
			}
			if l.packet != nil {
				loose = append(loose, b)
			} else {
				tcp = append(tcp, b)
			}
		}
	}
	return loose, tcp
}

// TestHedgeCosts writes bursts of all sizes to links whose controllers let pass more or less: nothing costs more than twice its bytes,
// everything is on its way at least once, and what went as datagrams only goes by the main leg, too, when nobody acknowledges it.
func TestHedgeCosts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	spared := 0
	for range 150 {
		c, main, _ := hedged(r.Int64N(400_000)+1, r.Int64N(400_000)+1, r.Int64N(400_000)+1)
		for range 1 + r.IntN(4) {
			before := c.sent
			at := len(main.frames)
			p := make([]byte, 1+r.IntN(hedgeBurst))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
			loose, tcp := copies(c)
			once, all := 0, 0
			for _, f := range c.unacked[before:] {
				once += len(f.buf)
			}
			seen := map[uint64]bool{}
			for _, list := range [][][]byte{main.frames[at:], loose, tcp} {
				for _, b := range list {
					all += len(b)
					if h, err := parseHeader(b); err != nil {
						t.Fatal(err)
					} else if h.kind == typeData {
						seen[h.number] = true
					}
				}
			}
			if all > 2*once {
				t.Fatalf("%d bytes for %d", all, once)
			}
			if len(seen) != int(c.sent-before) {
				t.Fatalf("%d frames of %d are on their way", len(seen), c.sent-before)
			}
		}
		if n := 2 * c.under; len(main.frames) < int(c.sent) {
			spared++
			for _, f := range c.unacked {
				f.sent -= time.Second
			}
			c.makeUp()
			c.wg.Wait()
			if c.copied > n {
				t.Fatalf("%d bytes of copies", c.copied)
			}
		}
		if len(main.frames) != int(c.sent) {
			t.Fatalf("%d frames of %d went by the main leg", len(main.frames), c.sent)
		}
	}
	if spared < 50 {
		t.Errorf("%d of 150 links spared anything", spared)
	}
}

// TestHedgeLoss has TCP wait for what it lost and one datagram of each group be lost, and the others come in any order, some twice: the
// other side has everything all the same.
func TestHedgeLoss(t *testing.T) {
	t.Parallel()
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 8))
		from, _, _ := hedged(10_000_000, 10_000_000, 10_000_000)
		now := boottime.Now()
		for _, l := range from.legs {
			l.bucket.at = now - time.Second // full
		}
		to := newConn("0123456789abcdef", "p", Config{})
		to.twice.Store(true)
		var got []byte
		to.in.sink = func(b []byte) error { got = append(got, b...); return nil }
		p := make([]byte, 2000+r.IntN(parityMost*1000-2000))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		if _, err := from.Write(p); err != nil {
			t.Fatal(err)
		}
		loose, _ := copies(from)
		lost := r.IntN(len(loose))
		loose = append(loose[:lost], loose[lost+1:]...)
		loose = append(loose, loose[r.IntN(len(loose))])
		r.Shuffle(len(loose), func(i, j int) { loose[i], loose[j] = loose[j], loose[i] })
		l := newLeg(to, &canned{})
		for _, b := range loose {
			h, err := parseHeader(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.handle(h, b[headerLen:]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, p) {
			t.Fatalf("seed %d: %d bytes of %d", seed, len(got), len(p))
		}
	}
}

// TestHedgedPieces changes what the codec makes of the bytes: hardly a frame is then too long for a datagram.
func TestHedgedPieces(t *testing.T) {
	t.Parallel()
	c, _, _ := hedged(10_000_000)
	c.setting = codec.Setting{Codec: codec.Zstd, Level: 1}
	r := rand.New(rand.NewPCG(4, 4))
	long := 0
	for _, noise := range []bool{false, true} {
		for range 20 {
			p := make([]byte, 8000)
			for i := range p {
				if p[i] = byte(i / 100); noise {
					p[i] = byte(r.Uint32())
				}
			}
			before := len(c.unacked)
			if _, err := c.Write(p); err != nil {
				t.Fatal(err)
			}
			_, _ = copies(c)
			for _, f := range c.unacked[before:] {
				if len(f.buf) > maxDatagram {
					long++
				}
			}
			c.acknowledged(c.sent)
		}
	}
	if long > 3 {
		t.Errorf("%d frames were longer than a datagram", long)
	}
}
