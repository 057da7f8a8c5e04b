package link

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"sync"

	"github.com/klauspost/reedsolomon"
)

// A frame that is longer than a datagram travels as shards: pieces of one length, and parities computed from them. Any
// subset of as many shards as there are pieces reconstructs the frame (Reed and Solomon, 1960), so a loss costs no
// retransmission.

const (
	pieceMost  = maxDatagram - shardHead // bytes
	piecesMost = 32                      // of the longest frame
	sparesMost = 8                       // parities
	scatterTo  = 32 << 10                // bytes of the longest frame that travels as shards
	shardHead  = headerLen + 1           // the index precedes the piece
	usualLoss  = 0.01                    // share of packets lost that parities are computed for, at least
	rareLoss   = 1e-4                    // share of frames that may lose more shards than they have parities
	openMost   = 16                      // incomplete frames
	openBytes  = 256 << 10               // bytes of their shards
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// coder returns the encoder for that many pieces. A parity depends on the pieces only, not on how many parities are
// sent.
func coder(pieces int) (reedsolomon.Encoder, error) {
	coders.Lock()
	defer coders.Unlock()
	if coders.by[pieces] == nil {
		e, err := reedsolomon.New(pieces, sparesMost, reedsolomon.WithMaxGoroutines(1), reedsolomon.WithInversionCache(false))
		if err != nil {
			return nil, fmt.Errorf("%d pieces: %w", pieces, err)
		}
		coders.by[pieces] = e
	}
	return coders.by[pieces], nil
}

var coders struct {
	sync.Mutex
	by [piecesMost + 1]reedsolomon.Encoder
}

// cut returns how many pieces a frame of n bytes is cut into, and the bytes of each.
func cut(n int) (pieces, each int) {
	pieces = (n + pieceMost - 1) / pieceMost
	each = (n + pieces - 1) / pieces
	return pieces, each
}

// spares returns how many parities a frame gets if that share of the packets is lost: so many that more losses are rare
// (rareLoss), and at most one for each four pieces.
func spares(pieces int, share float64) (n int) {
	mean := float64(pieces) * max(share, usualLoss)
	term := math.Exp(-mean) // rare, independent losses: Poisson distribution
	for rest := 1 - term; rest > rareLoss && n < min(max(1, pieces/4), sparesMost); rest -= term {
		n++
		term *= mean / float64(n)
	}
	return n
}

// shards returns the datagrams of a frame: its pieces and that many parities.
func shards(f *frame, parities int, ack uint64) ([][]byte, error) {
	pieces, each := cut(len(f.buf))
	h := header{kind: typeShard, number: f.number, ack: ack, size: len(f.buf), length: 1 + each, crc: crc32.Checksum(f.buf, castagnoli)}
	all := make([][]byte, pieces+sparesMost)
	parts := make([][]byte, len(all))
	memory := make([]byte, len(all)*(shardHead+each))
	for i := range all {
		all[i], memory = memory[:shardHead+each:shardHead+each], memory[shardHead+each:]
		h.append(all[i][:0])
		all[i][headerLen] = byte(i)
		parts[i] = all[i][shardHead:]
		if i < pieces {
			copy(parts[i], f.buf[i*each:])
		}
	}
	e, err := coder(pieces)
	if err == nil {
		err = e.Encode(parts)
	}
	if err != nil {
		return nil, err
	}
	return all[:pieces+parities], nil
}

// gathering is an incomplete frame.
type gathering struct {
	header
	pieces, each int
	parts        [][]byte // empty where the shard has not arrived
	have         int
}

// gatherer keeps the shards of incomplete frames.
type gatherer struct {
	open  []*gathering
	bytes int // of the parts
}

// note takes a shard and returns the frame once it is complete. made reports whether a lost part was reconstructed. A
// malformed shard is dropped: the sender sends an unacknowledged frame again by another leg.
func (g *gatherer) note(h header, body []byte) (frame []byte, made bool) {
	if len(body) < 2 || h.size <= headerLen || h.size > scatterTo {
		return nil, false
	}
	at, part := int(body[0]), body[1:]
	pieces := (h.size + len(part) - 1) / len(part)
	if pieces > piecesMost || at >= pieces+sparesMost {
		return nil, false
	}
	i := slices.IndexFunc(g.open, func(o *gathering) bool { return o.number == h.number })
	if i < 0 {
		g.open = append(g.open, &gathering{header: h, pieces: pieces, each: len(part), parts: make([][]byte, pieces+sparesMost)})
		i = len(g.open) - 1
	}
	o := g.open[i]
	if o.each != len(part) || o.size != h.size || o.crc != h.crc || len(o.parts[at]) > 0 {
		return nil, false
	}
	o.parts[at] = bytes.Clone(part)
	o.have++
	g.bytes += len(part)
	if o.have < o.pieces {
		for len(g.open) > openMost || g.bytes > openBytes {
			g.forget(0)
		}
		return nil, false
	}
	g.forget(i)
	return o.join()
}

func (g *gatherer) forget(i int) {
	g.bytes -= g.open[i].have * g.open[i].each
	g.open = slices.Delete(g.open, i, i+1)
}

// below forgets the frames that have arrived meanwhile.
func (g *gatherer) below(next uint64) {
	for i := len(g.open) - 1; i >= 0; i-- {
		if g.open[i].number < next {
			g.forget(i)
		}
	}
}

// join returns the frame, nil if its checksum or header is wrong.
func (o *gathering) join() (frame []byte, made bool) {
	made = slices.ContainsFunc(o.parts[:o.pieces], func(p []byte) bool { return len(p) == 0 })
	if made {
		e, err := coder(o.pieces)
		if err == nil {
			err = e.ReconstructData(o.parts)
		}
		if err != nil {
			return nil, false
		}
	}
	b := slices.Concat(o.parts[:o.pieces]...)[:o.size]
	if crc32.Checksum(b, castagnoli) != o.crc {
		return nil, false
	}
	f, err := parseHeader(b)
	if err != nil || f.kind != typeData || f.length != o.size-headerLen || f.number != o.number {
		return nil, false
	}
	return b, made
}

// gather takes a shard, and receives the frame once it is complete.
func (c *Conn) gather(l *leg, h header, body []byte) error {
	next := c.next.Load()
	if err := c.collect(h, body); err != nil || c.next.Load() == next {
		return err
	}
	// At once: without an acknowledgement the other side sends the frame by another leg as well.
	c.noteAck(c.next.Load())
	l.reply(header{kind: typeAck, ack: c.next.Load()})
	return nil
}

func (c *Conn) collect(h header, body []byte) error {
	in := &c.in
	in.mu.Lock()
	defer in.mu.Unlock()
	in.shards.below(c.next.Load())
	if _, parked := in.parked[h.number]; parked || h.number < c.next.Load() {
		return nil
	}
	b, made := in.shards.note(h, body)
	if b == nil {
		return nil
	}
	if made {
		in.repaired.Add(1)
	}
	f, _ := parseHeader(b) // join has checked it
	return c.order(f, b[headerLen:])
}
