package seeding

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// kept is a chunk that the target has something else for, until it has said which pages.
type kept struct {
	data  []byte
	pages []byte // their hashes
	codec codec
	live  bool
}

// chunkServer answers the questions of one data connection, in their order.
type chunkServer struct {
	w     *window
	f     *framed
	slots [pipeline]kept
	spare [][]byte // room for chunks
	in    held
	out   []byte // room for what is compressed
}

func (w *window) serveData(ctx context.Context, f *framed) error {
	c := &chunkServer{w: w, f: f, out: make([]byte, 0, chunkSize+chunkSize/16)}
	defer func() { _ = c.in.close() }() // it was only read
	for {
		kind, body, err := f.read(silence)
		if err != nil {
			return err
		}
		if err := w.open(); err != nil {
			return err
		}
		switch kind {
		case frameChunk:
			err = c.chunk(ctx, body)
		case framePages:
			err = c.pages(body)
		default:
			err = fmt.Errorf("a frame %q on a data connection", kind)
		}
		if err == nil && f.in.Buffered() == 0 {
			err = f.flush()
		}
		if err != nil {
			return err
		}
	}
}

// chunk reads the chunk once and says whether the target has it, or gives it.
func (c *chunkServer) chunk(ctx context.Context, body []byte) error {
	q, err := decodeQuestion(body)
	if err != nil {
		return err
	}
	if int64(q.File) >= int64(len(c.w.files)) {
		return fmt.Errorf("file %d of %d", q.File, len(c.w.files))
	}
	file := c.w.files[q.File]
	if file.Dir || int64(q.Chunk) >= int64(file.chunks()) {
		return fmt.Errorf("chunk %d of %s", q.Chunk, file.Name)
	}
	off, n := file.span(int(q.Chunk))
	k := &c.slots[q.Slot]
	c.drop(k)
	buf := c.room()[:n]
	defer func() {
		if !k.live {
			c.spare = append(c.spare, buf)
		}
	}()
	n, err = c.w.pages.read(ctx, &c.in, c.w.path(file), file, off, buf)
	if isGone(err) {
		return c.f.write(frameGone, answer{Slot: q.Slot}.head())
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file.Name, err)
	}
	buf = buf[:n]
	a := answer{Slot: q.Slot, Len: uint32(n)}
	if q.Have {
		k.pages = pageSums(k.pages[:0], buf, c.w.info.Page)
		a.Hash = sum(k.pages)
		if a.Hash == q.Hash {
			return c.f.write(frameSame, a.head())
		}
	}
	if allZero(buf) {
		return c.f.write(frameZero, a.head())
	}
	if q.Have {
		k.data, k.codec, k.live = buf, q.Codec, true
		return c.f.write(frameDiffers, a.head())
	}
	a.Hash = guard(buf)
	out, used := q.Codec.compress(c.out[:0], buf)
	a.Codec = used
	return c.f.write(frameData, a.head(), out)
}

// room returns room for a chunk.
func (c *chunkServer) room() []byte {
	n := len(c.spare)
	if n == 0 {
		return make([]byte, chunkSize)
	}
	b := c.spare[n-1]
	c.spare = c.spare[:n-1]
	return b[:chunkSize]
}

// drop gives back what was kept.
func (c *chunkServer) drop(k *kept) {
	if k.live {
		c.spare = append(c.spare, k.data)
	}
	k.data, k.live = nil, false
}

// pages sends those pages of a kept chunk whose hashes the target does not have.
func (c *chunkServer) pages(body []byte) error {
	if len(body) < 1 || body[0] >= pipeline || (len(body)-1)%hashSize != 0 {
		return errors.New("malformed hashes of pages")
	}
	k := &c.slots[body[0]]
	if !k.live {
		return errors.New("hashes of pages for a chunk that was not asked for")
	}
	defer c.drop(k)
	theirs := body[1:]
	size := c.w.info.Page
	var bitmap [chunkSize / 1024 / 8]byte
	var differ []byte
	for i, at := 0, 0; at < len(k.data); i, at = i+1, at+size {
		if end := (i + 1) * hashSize; end <= len(theirs) && bytes.Equal(theirs[i*hashSize:end], k.pages[i*hashSize:end]) {
			continue
		}
		bitmap[i/8] |= 1 << (i % 8)
		differ = append(differ, k.data[at:min(at+size, len(k.data))]...)
	}
	out, used := k.codec.compress(c.out[:0], differ)
	count := (len(k.data) + size - 1) / size
	a := answer{Slot: body[0], Len: uint32(len(k.data)), Hash: sum(k.pages), Codec: used, Pages: bitmap[:(count+7)/8]}
	return c.f.write(framePatch, a.head(), out)
}
