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

// read fills buf from off on and returns how much the file has there. A file that is gone gives os.ErrNotExist.
func (r *pageReader) read(ctx context.Context, full string, f file, off int64, buf []byte) (int, error) {
	in, err := os.Open(full)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	cold := !resident(in, off, len(buf))
	n, err := readAt(in, buf, off)
	if err != nil {
		return 0, err
	}
	if cold { // leave the page cache to the server's own reads
		_ = unix.Fadvise(int(in.Fd()), off, int64(len(buf)), unix.FADV_DONTNEED)
	} else {
		_ = unix.Fadvise(int(in.Fd()), off+int64(len(buf)), chunkSize, unix.FADV_WILLNEED)
	}
	segment, pages := relationFile(f.Space, f.Name)
	if !r.verify || !pages {
		return n, nil
	}
	const segmentSize = 1 << 30 // of a relation, in every build that Coterie runs on
	first := segment*uint32(segmentSize/r.size) + uint32(off/int64(r.size))
	for i := 0; i+r.size <= n; i += r.size {
		if err := r.page(ctx, in, f, off+int64(i), buf[i:i+r.size], first+uint32(i/r.size)); err != nil {
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

func readAt(in io.ReaderAt, buf []byte, off int64) (int, error) {
	n, err := in.ReadAt(buf, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// resident tells whether most of a range is in the page cache.
func resident(in *os.File, off int64, n int) bool {
	st, err := in.Stat()
	if err != nil || st.Size() <= off {
		return true
	}
	n = int(min(int64(n), st.Size()-off))
	m, err := unix.Mmap(int(in.Fd()), off, n, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return true
	}
	defer func() { _ = unix.Munmap(m) }()
	vec := make([]byte, (n+os.Getpagesize()-1)/os.Getpagesize())
	if err := mincore(m, vec); err != nil {
		return true
	}
	in1 := 0
	for _, v := range vec {
		in1 += int(v & 1)
	}
	return 2*in1 >= len(vec)
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
