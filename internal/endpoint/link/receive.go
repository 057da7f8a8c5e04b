package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/lib/codec"
)

var errOrder = errors.New("frames that no window allows")

// inbox puts frames in order, decodes them, and hands the bytes to a reader.
type inbox struct {
	mu      sync.Mutex
	moved   sync.Cond // of mu: bytes came or went, a deadline passed, or the link ended
	dec     codec.Decoder
	parked  map[uint64]parked // frames that overtook others
	waiting int               // bytes of parked
	bytes   []byte            // decoded, for Read
	sink    func([]byte) error
	failed  error // of sink
	eof     bool
	end     time.Time
	shards  gatherer
	since   int // bytes received since the last acknowledgement

	// Counters that Status reads without waiting for a sink.
	raw, encoded      atomic.Uint64 // bytes after and before decoding
	doubles, repaired atomic.Uint64 // frames that came twice; frames of which a part was reconstructed
	busy              atomic.Int64
}

type parked struct {
	header
	body []byte
}

func (in *inbox) init() {
	in.moved.L = &in.mu
	in.parked = make(map[uint64]parked)
}

func (in *inbox) wake() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.moved.Broadcast()
}

func (in *inbox) deadline(t time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.end = t
	in.moved.Broadcast()
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		time.AfterFunc(wait, in.wake)
	}
}

// receive takes a numbered frame from any leg. Each number is taken once and in order; a frame that is too early waits.
func (c *Conn) receive(h header, body []byte) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return c.order(h, body)
}

// order does the work of receive; in.mu is held.
func (c *Conn) order(h header, body []byte) error {
	in := &c.in
	next := c.next.Load()
	switch {
	case h.number < next:
		in.doubles.Add(1)
		return nil
	case h.number > next:
		if _, twice := in.parked[h.number]; twice {
			in.doubles.Add(1)
			return nil
		}
		if in.waiting += len(body) + headerLen; in.waiting > window+maxPayload {
			return errOrder
		}
		in.parked[h.number] = parked{h, bytes.Clone(body)}
		return nil
	}
	for {
		if err := c.take(h, body); err != nil {
			return err
		}
		p, ok := in.parked[c.next.Load()]
		if !ok {
			break
		}
		delete(in.parked, p.number)
		in.waiting -= len(p.body) + headerLen
		h, body = p.header, p.body
	}
	if in.since >= ackEvery {
		in.since = 0
		c.acknowledge()
	}
	c.checkReset()
	return nil
}

// take decodes the next frame and hands its bytes on; in.mu is held, and released while it waits for Read.
func (c *Conn) take(h header, body []byte) error {
	in := &c.in
	if in.eof {
		return fmt.Errorf("%w: bytes after the end", errOrder)
	}
	if h.kind == typeEnd {
		in.eof = true
		c.next.Store(h.number + 1)
		in.moved.Broadcast()
		return nil
	}
	began := time.Now()
	out, err := in.dec.Decode(h.block(body))
	if err != nil {
		return err
	}
	if h.codec != codec.Raw {
		in.busy.Add(int64(time.Since(began)))
	}
	in.raw.Add(uint64(len(out)))
	in.encoded.Add(uint64(len(body)))
	in.since += len(body)
	c.next.Store(h.number + 1)
	if in.sink == nil {
		in.bytes = append(in.bytes, out...)
		in.moved.Broadcast()
		for len(in.bytes) > inboxLimit && in.sink == nil && !c.isOver() {
			in.moved.Wait()
		}
		return nil
	}
	in.pass(out)
	return nil
}

// pass hands bytes to the sink; mu is held, so that its calls are in order. Bytes that the sink refuses are lost.
func (in *inbox) pass(b []byte) {
	if err := in.sink(b); err != nil {
		in.failed, in.sink = err, nil
		in.moved.Broadcast()
	}
}

func (c *Conn) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

func (in *inbox) read(c *Conn, p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		switch {
		case expired(in.end):
			return 0, os.ErrDeadlineExceeded
		case len(in.bytes) > 0:
			n := copy(p, in.bytes)
			in.bytes = append(in.bytes[:0], in.bytes[n:]...)
			in.moved.Broadcast()
			return n, nil
		case in.eof:
			return 0, io.EOF
		case c.isOver():
			return 0, c.failure()
		}
		in.moved.Wait()
	}
}

func (in *inbox) receive(c *Conn, f func([]byte) error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.sink = f
	in.moved.Broadcast()
	if b := in.bytes; len(b) > 0 {
		in.bytes = nil
		in.pass(b)
	}
	for in.failed == nil && !in.eof && !c.isOver() && !expired(in.end) {
		in.moved.Wait()
	}
	in.sink = nil
	switch err := in.failed; {
	case err != nil:
		in.failed = nil // Read may follow
		return err
	case in.eof:
		return nil
	case c.isOver():
		return c.failure()
	}
	return os.ErrDeadlineExceeded
}

// acknowledge sends the other side the number below which every frame has arrived.
func (c *Conn) acknowledge() {
	n := c.next.Load()
	if c.told.Load() >= n {
		return
	}
	c.mu.Lock()
	main := c.main
	c.mu.Unlock()
	if main == nil {
		return
	}
	c.noteAck(n)
	main.control(header{kind: typeAck, ack: n}.append(nil))
}
