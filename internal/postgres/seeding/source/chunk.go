package source

import (
	"bytes"
	"context"
	"fmt"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// chunkServer answers the questions of one data connection, in their order.
type chunkServer struct {
	w    *window
	f    *wire.Conn
	in   fileio.Reader
	buf  []byte // room for a chunk
	sums []byte // hashes of its pages
	out  []byte // room for compressed data
}

func (w *window) serveData(ctx context.Context, f *wire.Conn) error {
	c := &chunkServer{w: w, f: f, buf: make([]byte, wire.ChunkSize), out: make([]byte, 0, wire.ChunkSize+wire.ChunkSize/16)}
	defer func() { _ = c.in.Close() }() // it was only read
	for {
		kind, body, err := f.Read(wire.Silence)
		if err != nil {
			return err
		}
		if err := w.open(); err != nil {
			return err
		}
		if kind != wire.FrameChunk {
			return fmt.Errorf("a frame %q on a data connection", kind)
		}
		if err = c.chunk(ctx, body); err == nil && !f.More() {
			err = f.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// chunk reads a chunk once, and either reports that the target has it or sends it.
func (c *chunkServer) chunk(ctx context.Context, body []byte) error {
	q, err := wire.DecodeQuestion(body)
	if err != nil {
		return err
	}
	if int64(q.File) >= int64(len(c.w.files)) {
		return fmt.Errorf("file %d of %d", q.File, len(c.w.files))
	}
	file := c.w.files[q.File]
	if file.Dir || int64(q.Chunk) >= int64(file.Chunks()) {
		return fmt.Errorf("chunk %d of %s", q.Chunk, file.Name)
	}
	off, n := file.Span(int(q.Chunk))
	n, err = c.w.pages.read(ctx, &c.in, position{c.w.path(file), file, off}, c.buf[:n])
	if isGone(err) {
		return c.f.Write(wire.FrameGone, wire.Answer{Slot: q.Slot}.Head())
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", file.Name, err)
	}
	send, kind, a := c.buf[:n], byte(wire.FrameData), wire.Answer{Slot: q.Slot, Len: uint32(n)}
	if len(q.Tags) > 0 {
		c.sums = c.w.hash.Sums(c.sums[:0], send, c.w.info.Page)
		if a.Hash = pagesum.Sum(c.sums); a.Hash == q.Hash {
			return c.f.Write(wire.FrameSame, a.Head())
		}
	}
	switch {
	case pagesum.AllZero(send):
		return c.f.Write(wire.FrameZero, a.Head())
	case len(q.Tags) > 0:
		kind = wire.FramePatch
		send, a.Pages = c.differing(send, q.Tags)
	default:
		a.Hash = pagesum.Guard(send)
	}
	out, used := q.Codec.Compress(c.out[:0], send)
	a.Codec = used
	return c.f.Write(kind, a.Head(), out)
}

// differing returns the pages of a chunk whose hashes do not begin with the target's tags, and a bitmap of them.
func (c *chunkServer) differing(chunk, tags []byte) (pages, bitmap []byte) {
	size := c.w.info.Page
	count := (len(chunk) + size - 1) / size
	pages, bitmap = chunk[:0], make([]byte, (count+7)/8)
	for i := range count {
		if end := (i + 1) * wire.TagSize; end <= len(tags) && bytes.Equal(tags[i*wire.TagSize:end], c.sums[i*pagesum.Size:][:wire.TagSize]) {
			continue
		}
		bitmap[i/8] |= 1 << (i % 8)
		pages = append(pages, chunk[i*size:min((i+1)*size, len(chunk))]...)
	}
	return pages, bitmap
}
