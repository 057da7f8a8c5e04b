package seeding

import (
	"bytes"
	"context"
	"fmt"
)

// chunkServer answers the questions of one data connection, in their order.
type chunkServer struct {
	w    *window
	f    *framed
	in   fileReader
	buf  []byte // room for a chunk
	sums []byte // hashes of its pages
	out  []byte // room for what is compressed
}

func (w *window) serveData(ctx context.Context, f *framed) error {
	c := &chunkServer{w: w, f: f, buf: make([]byte, chunkSize), out: make([]byte, 0, chunkSize+chunkSize/16)}
	defer func() { _ = c.in.close() }() // it was only read
	for {
		kind, body, err := f.read(silence)
		if err != nil {
			return err
		}
		if err := w.open(); err != nil {
			return err
		}
		if kind != frameChunk {
			return fmt.Errorf("a frame %q on a data connection", kind)
		}
		if err = c.chunk(ctx, body); err == nil && f.in.Buffered() == 0 {
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
	n, err = c.w.pages.read(ctx, &c.in, c.w.path(file), file, off, c.buf[:n])
	if isGone(err) {
		return c.f.write(frameGone, answer{Slot: q.Slot}.head())
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file.Name, err)
	}
	send, kind, a := c.buf[:n], byte(frameData), answer{Slot: q.Slot, Len: uint32(n)}
	if len(q.Tags) > 0 {
		c.sums = c.w.hash.sums(c.sums[:0], send, c.w.info.Page)
		if a.Hash = sum(c.sums); a.Hash == q.Hash {
			return c.f.write(frameSame, a.head())
		}
	}
	switch {
	case allZero(send):
		return c.f.write(frameZero, a.head())
	case len(q.Tags) > 0:
		kind = framePatch
		send, a.Pages = c.differing(send, q.Tags)
	default:
		a.Hash = guard(send)
	}
	out, used := q.Codec.compress(c.out[:0], send)
	a.Codec = used
	return c.f.write(kind, a.head(), out)
}

// differing leaves of a chunk the pages whose hashes do not begin as the target's do, and says which they are.
func (c *chunkServer) differing(chunk, tags []byte) (pages, bitmap []byte) {
	size := c.w.info.Page
	count := (len(chunk) + size - 1) / size
	pages, bitmap = chunk[:0], make([]byte, (count+7)/8)
	for i := range count {
		if end := (i + 1) * tagSize; end <= len(tags) && bytes.Equal(tags[i*tagSize:end], c.sums[i*hashSize:][:tagSize]) {
			continue
		}
		bitmap[i/8] |= 1 << (i % 8)
		pages = append(pages, chunk[i*size:min((i+1)*size, len(chunk))]...)
	}
	return pages, bitmap
}
