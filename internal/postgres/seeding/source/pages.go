package source

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// The server may write a page while it is being read, which tears it. Such a page is read again, at most this often and
// at this interval.
const (
	pageTries = 5
	pagePause = 20 * time.Millisecond
)

// pageReader reads chunks of files of a running server and verifies the checksums of their pages.
type pageReader struct {
	size   int
	verify bool
	start  ag.LSN // WAL repairs the pages that changed after it
	insert func(context.Context) (ag.LSN, error)
}

// position is where a chunk begins: at off in a listed file, which is at path.
type position struct {
	path string
	file wire.File
	off  int64
}

// pagePosition is the place of a page in a listed file, and its block number, counted through all segments of the
// relation fork.
type pagePosition struct {
	file  wire.File
	off   int64
	block uint32
}

// read fills buf from the position on and returns the number of bytes that the file has there. For a file that no
// longer exists it returns os.ErrNotExist. in belongs to the caller and is kept from one call to the next.
func (r *pageReader) read(ctx context.Context, in *fileio.Reader, at position, buf []byte) (int, error) {
	f, off := at.file, at.off
	n, err := in.Read(fileio.Entry{Space: f.Space, Name: f.Name}, func(flags int) (*os.File, error) { return os.OpenFile(at.path, os.O_RDONLY|flags, 0) }, buf, off)
	if err != nil {
		return 0, err
	}
	segment, pages := datadir.RelationFile(f.Space, f.Name)
	if !r.verify || !pages {
		return n, nil
	}
	const segmentSize = 1 << 30 // of a relation, in every build that Coterie supports
	first := segment*uint32(segmentSize/r.size) + uint32(off/int64(r.size))
	for i := 0; i+r.size <= n; i += r.size {
		if err := r.page(ctx, in.Last(), pagePosition{f, off + int64(i), first + uint32(i/r.size)}, buf[i:i+r.size]); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// page verifies one page, and reads it again while it looks torn.
func (r *pageReader) page(ctx context.Context, in *os.File, at pagePosition, page []byte) error {
	for try := 0; ; try++ {
		state, lsn := pagesum.Check(page, at.block)
		if state != pagesum.Wrong {
			return nil
		}
		if lsn > r.start {
			if now, err := r.insert(ctx); err == nil && lsn <= now {
				return nil // changed since the backup began: WAL holds an image of the whole page
			}
		}
		if try == pageTries {
			return &pagesum.CorruptError{File: at.file.Name, Block: at.block, LSN: lsn}
		}
		if retry.Sleep(ctx, pagePause) != nil {
			return ctx.Err()
		}
		if n, err := fileio.ReadAt(in, page, at.off); err != nil {
			return err
		} else if n < len(page) {
			return nil // cut meanwhile, which is in the WAL as well
		}
	}
}

// control reads pg_control until it is whole: the server may be writing it.
func (w *window) control(ctx context.Context) ([]byte, error) {
	for try := 0; ; try++ {
		b, err := os.ReadFile(filepath.Join(w.data, datadir.ControlFile))
		if err != nil {
			return nil, err
		}
		if err = datadir.CheckControl(b, w.info.SystemID); err == nil {
			return b, nil
		}
		if try >= 50 {
			return nil, err
		}
		if retry.Sleep(ctx, 10*time.Millisecond) != nil {
			return nil, ctx.Err()
		}
	}
}
