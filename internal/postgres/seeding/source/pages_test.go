package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestTornPagesAreReadAgain reads a page of a later segment that the server has half written. The page is read again
// until it is whole, and is accepted torn where WAL of the window repairs it. A page that stays wrong is reported by
// its number within the whole relation.
func TestTornPagesAreReadAgain(t *testing.T) {
	t.Parallel()
	const size, block = 8192, 1<<30/8192 + 1 // the second page of the segment .1
	whole := bytes.Repeat([]byte("row "), 2*size/4)
	write := func(page []byte, lsn ag.LSN, number uint32) {
		binary.NativeEndian.PutUint32(page[pagesum.LSNOffset:], uint32(lsn>>32))
		binary.NativeEndian.PutUint32(page[pagesum.LSNOffset+4:], uint32(lsn))
		binary.NativeEndian.PutUint16(page[pagesum.UpperOffset:], size)
		binary.NativeEndian.PutUint16(page[pagesum.ChecksumOffset:], pagesum.Checksum(page, number))
	}
	write(whole[:size], 50, block-1)
	write(whole[size:], 500, block)
	torn := bytes.Clone(whole)
	clear(torn[size+4096:])
	for _, c := range []struct {
		name    string
		insert  ag.LSN // the current end of WAL
		mended  int    // the read at which the server has written all of it; 0: never
		looks   int
		want    []byte
		corrupt bool
	}{
		{"written meanwhile", 400, 2, 2, whole, false},
		{"of the window", 500, 0, 1, torn, false},
		{"damaged", 400, 0, pageTries + 1, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "16384.1")
			if err := os.WriteFile(path, torn, 0o600); err != nil {
				t.Fatal(err)
			}
			looks := 0
			r := pageReader{size: size, verify: true, start: 100, insert: func(context.Context) (ag.LSN, error) {
				if looks++; looks == c.mended {
					if err := os.WriteFile(path, whole, 0o600); err != nil {
						t.Error(err)
					}
				}
				return c.insert, nil
			}}
			var in fileio.Reader
			buf := make([]byte, wire.ChunkSize)
			n, err := r.read(t.Context(), &in, position{path, wire.File{Name: "base/5/16384.1", Size: 2 * size}, 0}, buf[:2*size])
			var bad *pagesum.CorruptError
			switch {
			case errors.As(err, &bad) != c.corrupt || err != nil && !c.corrupt:
				t.Fatalf("error %v", err)
			case c.corrupt && (bad.Block != block || bad.LSN != 500 || bad.File != "base/5/16384.1"):
				t.Errorf("it names %+v", bad)
			case !c.corrupt && !bytes.Equal(buf[:n], c.want):
				t.Errorf("it took other bytes, %d of %d", n, len(c.want))
			}
			if looks != c.looks {
				t.Errorf("it looked at WAL %d times, want %d", looks, c.looks)
			}
			if err := in.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
