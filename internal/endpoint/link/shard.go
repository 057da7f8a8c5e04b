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

// A frame that is longer than a datagram travels as shards: pieces of one length, and some more, the parities, made of them. From as many
// shards as there are pieces, whichever they are, the frame is made (Reed and Solomon, 1960), and nobody waits for a retransmission.

const (
	pieceMost  = maxDatagram - shardHead // bytes
	piecesMost = 32                      // so the longest frame has
	sparesMost = 8                       // parities
	scatterTo  = 32 << 10                // bytes of a frame that may travel so
	shardHead  = headerLen + 1           // the index precedes the piece
	usualLoss  = 0.01                    // of packets, at least, that parities are reckoned with
	rareLoss   = 1e-4                    // of frames, that may lose more than they have parities
	openMost   = 16                      // frames of which shards wait for others
	openBytes  = 256 << 10               // and bytes of those
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// coder makes and uses the parities of so many pieces. The pieces alone decide what a parity is, not how many of them are sent.
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

// cut says in how many pieces of how many bytes a frame of n bytes is cut.
func cut(n int) (pieces, each int) {
	pieces = (n + pieceMost - 1) / pieceMost
	each = (n + pieces - 1) / pieces
	return pieces, each
}

// spares returns how many parities so many pieces get where that share of the packets is lost: rarely are more of them lost, and there is
// one for each four pieces at most.
func spares(pieces int, share float64) (n int) {
	mean := float64(pieces) * max(share, usualLoss)
	term := math.Exp(-mean) // losses are few, and independent: Poisson's law
	for rest := 1 - term; rest > rareLoss && n < min(max(1, pieces/4), sparesMost); rest -= term {
		n++
		term *= mean / float64(n)
	}
	return n
}

// shards returns the datagrams of a frame: its pieces, and so many parities.
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

// gathering is a frame of which some shards have come.
type gathering struct {
	header
	pieces, each int
	parts        [][]byte // those that have not come are empty
	have         int
}

// gatherer keeps the shards of frames of which not enough have come.
type gatherer struct {
	open  []*gathering
	bytes int // of the parts
}

// note takes a shard and returns the frame if that was the last one it takes to make it. made says that a part of it was lost, and made
// again. What no sender sends is dropped: a frame comes by another way, too, if nobody acknowledges it.
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

// below forgets the frames that have come meanwhile.
func (g *gatherer) below(next uint64) {
	for i := len(g.open) - 1; i >= 0; i-- {
		if g.open[i].number < next {
			g.forget(i)
		}
	}
}

// join makes the frame, nil if what comes out is not what was sent.
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

// gather takes a shard, and the frame if it can be made now.
func (c *Conn) gather(l *leg, h header, body []byte) error {
	next := c.next.Load()
	if err := c.collect(h, body); err != nil || c.next.Load() == next {
		return err
	}
	// The other side would send it by another leg as well.
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
	f, _ := parseHeader(b) // join has asked
	return c.order(f, b[headerLen:])
}
