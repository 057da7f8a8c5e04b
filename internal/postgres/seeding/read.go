package seeding

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
)

// Torn pages: the server may be writing a page while it is read. It is read again this often, this far apart.
const (
	pageTries = 5
	pagePause = 20 * time.Millisecond
)

// CorruptError is a page whose checksum is wrong and stays wrong.
type CorruptError struct {
	File  string
	Block uint32
	LSN   ag.LSN
}

// Error names the page as an administrator can find it.
func (e *CorruptError) Error() string {
	return fmt.Sprintf("page %d of %s is damaged at the source (its checksum does not fit, its LSN is %s); repair it there, "+
		"seed from another replica, or accept damaged pages", e.Block, e.File, e.LSN)
}

// pageReader reads chunks of files of a running server and verifies the checksums of their pages.
type pageReader struct {
	size   int
	verify bool
	start  ag.LSN // pages changed since are repaired by WAL
	insert func(context.Context) (ag.LSN, error)
}

// read fills buf from off on and returns how much the file has there. A file that is gone gives os.ErrNotExist. in is the caller's own
// from one call to the next.
func (r *pageReader) read(ctx context.Context, in *fileReader, full string, f file, off int64, buf []byte) (int, error) {
	n, err := in.read(place{f.Space, f.Name}, func(flags int) (*os.File, error) { return os.OpenFile(full, os.O_RDONLY|flags, 0) }, buf, off)
	if err != nil {
		return 0, err
	}
	segment, pages := relationFile(f.Space, f.Name)
	if !r.verify || !pages {
		return n, nil
	}
	const segmentSize = 1 << 30 // of a relation, in every build that Coterie runs on
	first := segment*uint32(segmentSize/r.size) + uint32(off/int64(r.size))
	for i := 0; i+r.size <= n; i += r.size {
		if err := r.page(ctx, in.file(), f, off+int64(i), buf[i:i+r.size], first+uint32(i/r.size)); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// page verifies one page, and reads it again while it looks torn.
func (r *pageReader) page(ctx context.Context, in *os.File, f file, off int64, page []byte, block uint32) error {
	for try := 0; ; try++ {
		state, lsn := checkPage(page, block)
		if state != pageWrong {
			return nil
		}
		if lsn > r.start {
			if now, err := r.insert(ctx); err == nil && lsn <= now {
				return nil // changed since the backup began: WAL holds an image of the whole page
			}
		}
		if try == pageTries {
			return &CorruptError{File: f.Name, Block: block, LSN: lsn}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pagePause):
		}
		if n, err := readAt(in, page, off); err != nil {
			return err
		} else if n < len(page) {
			return nil // cut meanwhile, which WAL tells as well
		}
	}
}

// fileReader reads chunks of files in a row, for one goroutine.
type fileReader struct {
	cached held // open through the page cache
	direct held // and past it
	refuse bool // a file system does not do direct reads
}

// read fills buf from off on, from a file of that place, which open opens with more flags of open(2). It returns how much the file has there.
// What the page cache has comes from there. What it lacks is read past it: to fill it costs ten times the processor time of the read
// itself, and it belongs to the server's own reads. The kernel writes down what it holds of such a range before it is read.
func (r *fileReader) read(of place, open func(flags int) (*os.File, error), buf []byte, off int64) (int, error) {
	in, err := r.cached.open(of, 0, func() (*os.File, error) { return open(0) })
	if err != nil {
		return 0, err
	}
	if r.refuse || len(buf) < directLeast || off%directBlock != 0 || mostlyCached(in, off, len(buf)) {
		return readAt(in, buf, off)
	}
	raw, err := r.direct.open(of, unix.O_DIRECT, func() (*os.File, error) { return open(unix.O_DIRECT) })
	n := 0
	if err == nil {
		n, err = readDirect(raw, buf, off)
	}
	if errors.Is(err, unix.EINVAL) { // other blocks are asked for, or none will do
		r.refuse, n, err = true, 0, nil
	}
	if err != nil || n == len(buf) {
		return n, err
	}
	rest, err := readAt(in, buf[n:], off+int64(n)) // nothing, at the end of the file
	return n + rest, err
}

// file is the one that was read last, through the page cache.
func (r *fileReader) file() *os.File { return r.cached.f }

func (r *fileReader) close() error { return errors.Join(r.cached.close(), r.direct.close()) }

// mostlyCached tells whether at least half of the range is in the page cache, and yes where the kernel does not tell, as before Linux 6.5.
func mostlyCached(in *os.File, off int64, n int) bool {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(in.Fd()), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	return err != nil || st.Cache*uint64(os.Getpagesize()) >= uint64(n)/2
}

// readDirect is readAt past the page cache, and may end early. Whole blocks are read, the last into the room behind buf, which must be there.
func readDirect(in *os.File, buf []byte, off int64) (int, error) {
	whole := (len(buf) + directBlock - 1) / directBlock * directBlock
	if whole > cap(buf) {
		return 0, unix.EINVAL
	}
	for n := 0; ; {
		got, err := unix.Pread(int(in.Fd()), buf[n:whole], off+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("read past the page cache: %w", err)
		}
		if n += got; n == whole || got == 0 || got%directBlock != 0 {
			return min(n, len(buf)), nil
		}
	}
}

func readAt(in io.ReaderAt, buf []byte, off int64) (int, error) {
	n, err := in.ReadAt(buf, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// checkControl tells whether b is a whole pg_control of that cluster. The checksum is the last field of a structure whose length
// differs by version, so it is looked for.
func checkControl(b []byte, systemID string) error {
	if len(b) != controlLen {
		return fmt.Errorf("pg_control has %d bytes", len(b))
	}
	if have := strconv.FormatUint(binary.NativeEndian.Uint64(b), 10); have != systemID {
		return fmt.Errorf("pg_control is of cluster %s and not of %s; both nodes must have the same architecture", have, systemID)
	}
	table := crc32.MakeTable(crc32.Castagnoli)
	for at := 200; at+4 <= 512; at += 4 {
		if crc32.Checksum(b[:at], table) == binary.NativeEndian.Uint32(b[at:]) {
			return nil
		}
	}
	return errors.New("pg_control has a wrong checksum")
}
