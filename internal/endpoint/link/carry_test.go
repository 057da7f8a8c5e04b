package link

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// taken is a transport that keeps the frames that are written to it.
type taken struct {
	canned
	kind   string
	rate   int64
	fresh  int // how often it was made to begin anew
	frames [][]byte
}

func (t *taken) Freshen() { t.fresh++ }

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

// hedged is a link of which short frames travel twice: TCP that carries, TCP beside it, and three QUIC legs of such
// rates.
func hedged(rates ...int64) (c *Conn, main, beside *taken) {
	c = newConn("0123456789abcdef", "p", Config{})
	c.hedging, c.shards = true, true
	main, beside = &taken{kind: TCP}, &taken{kind: TCP}
	c.legs = []*leg{newLeg(c, main), newLeg(c, beside)}
	for _, rate := range rates {
		c.legs = append(c.legs, newLeg(c, &taken{kind: QUIC, rate: rate}))
	}
	c.main = c.legs[0]
	return c, main, beside
}

// copies takes the bytes that are sent besides those of the main leg: the ones in datagrams, and the ones by TCP.
func copies(c *Conn) (loose, tcp [][]byte) {
	for _, l := range c.legs {
		for len(l.copies) > 0 {
			x := <-l.copies
			b := x.loose
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

// noise is bytes that do not shrink.
func noise(r *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// TestHedgeCosts writes all sizes to links whose controllers let pass more or less. No frame costs more than twice its
// bytes, and each is sent at least once. A frame that was sent as shards only is also sent by the main leg if the peer
// does not acknowledge it.
func TestHedgeCosts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	spared, short := 0, 0
	for range 150 {
		c, main, _ := hedged(r.Int64N(400_000)+1, r.Int64N(400_000)+1, r.Int64N(400_000)+1)
		for range 1 + r.IntN(4) {
			before, at := c.sent, len(main.frames)
			if _, err := c.Write(noise(r, 1+r.IntN([]int{1600, scatterTo + 1000}[r.IntN(2)]))); err != nil {
				t.Fatal(err)
			}
			loose, tcp := copies(c)
			bytes, pieces, whole := map[uint64]int{}, map[uint64]int{}, map[uint64]bool{}
			for _, list := range [][][]byte{main.frames[at:], loose, tcp} {
				for _, b := range list {
					h, err := parseHeader(b)
					if err != nil {
						t.Fatal(err)
					}
					bytes[h.number] += len(b)
					if h.kind == typeShard {
						pieces[h.number]++
					} else {
						whole[h.number] = true
					}
				}
			}
			for _, f := range c.unacked[before:] {
				if bytes[f.number] > 2*len(f.buf) {
					t.Fatalf("%d bytes for %d", bytes[f.number], len(f.buf))
				}
				if n, _ := cut(len(f.buf)); !whole[f.number] && pieces[f.number] <= n {
					t.Fatalf("%d shards of %d, and no frame, are on their way", pieces[f.number], n)
				}
				if len(f.buf) <= maxHedged && !whole[f.number] {
					t.Fatalf("a frame of %d bytes went as shards", len(f.buf))
				}
				if len(f.buf) <= maxHedged && bytes[f.number] == 2*len(f.buf) {
					short++
				}
			}
		}
		if len(main.frames) < int(c.sent) {
			spared++
			for _, f := range c.unacked {
				f.sent -= time.Second
			}
			c.makeUp()
			c.wg.Wait()
		}
		if len(main.frames) != int(c.sent) {
			t.Fatalf("%d frames of %d went by the main leg", len(main.frames), c.sent)
		}
	}
	if spared < 40 || short < 50 {
		t.Errorf("%d of 150 links sent shards, %d short frames went twice", spared, short)
	}
}

// TestHedgeLoss loses as many datagrams of each write as it has parities; the others come in any order, some many
// times. The other side has everything, though nothing came by TCP, and acknowledges it.
func TestHedgeLoss(t *testing.T) {
	t.Parallel()
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 8))
		from, _, _ := hedged(10_000_000, 10_000_000, 10_000_000)
		to := newConn("0123456789abcdef", "p", Config{})
		var got, want []byte
		to.in.sink = func(b []byte) error { got = append(got, b...); return nil }
		var loose [][]byte
		for range 1 + r.IntN(4) {
			p := noise(r, 1600+r.IntN(scatterTo-2000))
			want = append(want, p...)
			if _, err := from.Write(p); err != nil {
				t.Fatal(err)
			}
			list, _ := copies(from)
			pieces, _ := cut(headerLen + len(p))
			if len(list) <= pieces {
				t.Fatalf("seed %d: %d datagrams for %d pieces", seed, len(list), pieces)
			}
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			loose = append(loose, list[:pieces]...)
		}
		for range r.IntN(50) {
			loose = append(loose, loose[r.IntN(len(loose))])
		}
		r.Shuffle(len(loose), func(i, j int) { loose[i], loose[j] = loose[j], loose[i] })
		said := &taken{kind: TCP}
		l := newLeg(to, said)
		for _, b := range loose {
			h, err := parseHeader(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.handle(h, b[headerLen:]); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("seed %d: %d bytes of %d", seed, len(got), len(want))
		}
		last, err := parseHeader(said.frames[len(said.frames)-1])
		if err != nil || last.kind != typeAck || last.ack != from.sent {
			t.Fatalf("seed %d: acknowledged with %+v, %v", seed, last, err)
		}
		if len(to.in.shards.open) != 0 && to.in.shards.open[0].number >= to.next.Load() {
			t.Fatalf("seed %d: %d frames are still waited for", seed, len(to.in.shards.open))
		}
	}
}

// TestHedgedOnlyWhereUnderstood writes to a peer that knows no shards: nothing of a long frame goes as datagrams.
func TestHedgedOnlyWhereUnderstood(t *testing.T) {
	t.Parallel()
	c, main, beside := hedged(10_000_000)
	c.shards = false
	if _, err := c.Write(noise(rand.New(rand.NewPCG(4, 4)), 8000)); err != nil {
		t.Fatal(err)
	}
	loose, tcp := copies(c)
	if len(loose) != 0 || len(main.frames) != 1 || len(tcp) != 1 || len(beside.frames) != 0 {
		t.Errorf("%d datagrams, %d frames by the main leg, %d by the other", len(loose), len(main.frames), len(tcp))
	}
}

// TestFreshen holds that a leg of a long path without loss begins anew with its controller when nothing is under way,
// and only then.
func TestFreshen(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(76, 76))
	for _, c := range []struct {
		trip       time.Duration
		bbr, lossy bool
		want       int
	}{
		{60 * time.Millisecond, true, false, 2},
		{60 * time.Millisecond, false, false, 0},
		{time.Millisecond, true, false, 0},
		{60 * time.Millisecond, true, true, 0},
	} {
		l, main, beside := hedged()
		l.lastTrip, l.hedging = c.trip, c.lossy
		l.main.bbr.Store(c.bbr)
		for range 2 {
			for range 3 {
				if _, err := l.Write(noise(r, 2000)); err != nil {
					t.Fatal(err)
				}
			}
			l.acknowledged(l.sent)
		}
		if main.fresh != c.want || beside.fresh != 0 {
			t.Errorf("%+v: %d times, and %d beside it", c, main.fresh, beside.fresh)
		}
	}
}
