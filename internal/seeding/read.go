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

// read fills buf from off on and returns how much the file has there. A file that is gone gives os.ErrNotExist. in is the reader's own
// from one call to the next.
func (r *pageReader) read(ctx context.Context, in *held, full string, f file, off int64, buf []byte) (int, error) {
	opened, err := in.open(place{f.Space, f.Name}, 0, func() (*os.File, error) { return os.Open(full) })
	if err != nil {
		return 0, err
	}
	n, err := readKindly(opened, buf, off)
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
		if err := r.page(ctx, opened, f, off+int64(i), buf[i:i+r.size], first+uint32(i/r.size)); err != nil {
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

// readKindly reads what is in the page cache from there. The rest comes from the disk in one go, and is not left behind in the cache,
// which belongs to the server's own reads.
func readKindly(in *os.File, buf []byte, off int64) (int, error) {
	if len(buf) == 0 {
		return 0, nil
	}
	fd := int(in.Fd())
	cached, err := unix.Preadv2(fd, [][]byte{buf}, off, unix.RWF_NOWAIT)
	switch {
	case err == nil && cached == len(buf):
		return cached, nil
	case errors.Is(err, unix.EOPNOTSUPP): // this file system does not tell
		return readAt(in, buf, off)
	case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
		return 0, fmt.Errorf("read: %w", err)
	}
	cached = max(cached, 0)
	_ = unix.Fadvise(fd, off+int64(cached), int64(len(buf)-cached), unix.FADV_WILLNEED)
	rest, err := readAt(in, buf[cached:], off+int64(cached))
	if rest > len(buf)/2 {
		_ = unix.Fadvise(fd, off+int64(cached), int64(rest), unix.FADV_DONTNEED)
	}
	return cached + rest, err
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
