package link

import (
	"bytes"
	"encoding/hex"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

// framed returns a numbered frame around body.
func framed(number uint64, body []byte) *frame {
	f := newFrame(headerLen + len(body))
	h := header{kind: typeData, length: len(body), size: len(body), number: number}
	f.number, f.buf = number, append(h.append(f.buf), body...)
	return f
}

// TestShards loses shards of frames of all lengths. While as many shards remain as there are pieces, the frame is
// rebuilt exactly, from any of them in any order. With fewer shards, or with an altered one, no frame is rebuilt.
func TestShards(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 5))
	for round := range 400 {
		f := framed(r.Uint64N(1<<40), noise(r, maxHedged+r.IntN(scatterTo-headerLen-maxHedged)))
		list, err := shards(f, r.IntN(sparesMost+1), 0)
		if err != nil {
			t.Fatal(err)
		}
		pieces, _ := cut(len(f.buf))
		r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		enough := r.IntN(4) > 0
		list = list[:pieces]
		if !enough {
			list = list[:r.IntN(pieces)]
		}
		damaged := enough && r.IntN(4) == 0
		if damaged {
			b := list[r.IntN(len(list))]
			b[shardHead+r.IntN(len(b)-shardHead)] ^= 1 << r.IntN(8)
		}
		var g gatherer
		var got []byte
		for _, b := range list {
			h, err := parseHeader(b)
			if err != nil {
				t.Fatal(err)
			}
			for range 1 + r.IntN(2) {
				if whole, _ := g.note(h, b[headerLen:]); whole != nil {
					got = whole
					break
				}
			}
		}
		switch {
		case damaged || !enough:
			if got != nil {
				t.Fatalf("round %d: a frame was made of %d shards for %d pieces, damaged %t", round, len(list), pieces, damaged)
			}
		case !bytes.Equal(got, f.buf):
			t.Fatalf("round %d: %d bytes of %d", round, len(got), len(f.buf))
		}
		if g.below(f.number + 1); g.bytes != 0 || len(g.open) != 0 {
			t.Fatalf("round %d: %d bytes are kept of %d frames", round, g.bytes, len(g.open))
		}
	}
}

// TestShardsOnTheWire pins the bytes of a parity: both sides must agree, whatever version of the library they were
// built with.
func TestShardsOnTheWire(t *testing.T) {
	t.Parallel()
	body := make([]byte, 4000)
	for i := range body {
		body[i] = byte(i * i >> 3)
	}
	list, err := shards(framed(7, body), sparesMost, 9)
	if err != nil {
		t.Fatal(err)
	}
	sum := crc32.NewIEEE()
	for _, b := range list {
		_, _ = sum.Write(b)
	}
	last := list[len(list)-1]
	if got := hex.EncodeToString(last[:shardHead+8]); got != "09000000000003f10000000000000007000000000000000900000fc0df66c09f0bb63ccc2bf179ee17" {
		t.Errorf("the last parity begins with %s", got)
	}
	if len(list) != 4+sparesMost || sum.Sum32() != 0x84fd7f71 {
		t.Errorf("%d shards with the checksum %#x", len(list), sum.Sum32())
	}
}

func TestSpares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pieces int
		share  float64
		want   int
	}{{2, 0, 1}, {7, 0.01, 1}, {8, 0, 2}, {16, 0.01, 3}, {24, 0.007, 4}, {28, 0.01, 4}, {28, 0.05, 7}, {28, 0.5, 7}, {32, 1, 8}} {
		if got := spares(c.pieces, c.share); got != c.want {
			t.Errorf("%d pieces, %v lost: %d parities, want %d", c.pieces, c.share, got, c.want)
		}
	}
	if pieces, each := cut(scatterTo); pieces > piecesMost || shardHead+each > maxDatagram {
		t.Errorf("the longest frame has %d pieces of %d bytes", pieces, each)
	}
}

// TestShardsFlood sends shards of frames that never become whole. The memory for them is bounded, and a later frame is
// still made.
func TestShardsFlood(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(6, 6))
	var g gatherer
	for i := range uint64(2000) {
		size := headerLen + 1 + r.IntN(scatterTo)
		part := noise(r, 1+r.IntN([]int{10, 2000}[r.IntN(2)]))
		part[0] = byte(r.IntN(48))
		g.note(header{kind: typeShard, number: r.Uint64N(40) + i/50, size: size, crc: r.Uint32N(2)}, part)
		kept := 0
		for _, o := range g.open {
			for _, p := range o.parts {
				kept += len(p)
			}
		}
		if kept != g.bytes || kept > openBytes || len(g.open) > openMost {
			t.Fatalf("%d bytes of %d frames are kept, %d by the count", kept, len(g.open), g.bytes)
		}
	}
	f := framed(1<<40, noise(r, 20000))
	list, err := shards(f, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for _, b := range list {
		h, _ := parseHeader(b)
		if whole, _ := g.note(h, b[headerLen:]); whole != nil {
			got = whole
		}
	}
	if !bytes.Equal(got, f.buf) {
		t.Errorf("%d bytes of %d", len(got), len(f.buf))
	}
}

// FuzzShards plays a peer that sends any datagrams, each with its length before it. None of them may panic, exceed the
// memory bound, or be passed on unless it is a whole frame.
func FuzzShards(f *testing.F) {
	var seed []byte
	list, err := shards(framed(0, bytes.Repeat([]byte("row "), 1000)), 2, 0)
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range list[1:] {
		seed = append(append(seed, byte(len(b)>>8), byte(len(b))), b...)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newConn("0123456789abcdef", "p", Config{})
		passed, sent := 0, len(b)
		c.in.sink = func(p []byte) error { passed += len(p); return nil }
		l := newLeg(c, &canned{})
		for len(b) >= 2 {
			n := min(int(b[0])<<8|int(b[1]), len(b)-2)
			d := b[2 : 2+n]
			b = b[2+n:]
			if len(d) < headerLen {
				continue
			}
			if h, err := parseHeader(d); err != nil || h.kind != typeShard || l.handle(h, d[headerLen:]) != nil {
				continue
			}
			if g := &c.in.shards; g.bytes > openBytes || len(g.open) > openMost {
				t.Fatalf("%d bytes of %d frames are kept", g.bytes, len(g.open))
			}
		}
		if passed > 64*sent*1024 {
			t.Fatalf("%d bytes of %d", passed, sent)
		}
	})
}
