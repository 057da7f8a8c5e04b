package seeding

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestReadsPastTheCacheOrNot reads chunks of a file that is in the page cache and of one that is not, whole ones and the last: all hold what
// was written, also lately, and what was not in the cache is not there afterwards.
func TestReadsPastTheCacheOrNot(t *testing.T) {
	t.Parallel()
	content := make([]byte, 2*chunkSize+100_001)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	open := func(flags int) (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|flags, 0) }
	for _, evicted := range []bool{false, true} {
		if evicted {
			if err := f.Sync(); err != nil {
				t.Fatal(err)
			}
			if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte("written and not on the disk yet"), 5000); err != nil {
				t.Fatal(err)
			}
			copy(content[5000:], "written and not on the disk yet")
		}
		var in fileReader
		for off := 0; off < len(content)+chunkSize; off += chunkSize {
			want := content[min(off, len(content)):min(off+chunkSize, len(content))]
			for _, ask := range []int{chunkSize, len(want)} {
				buf := make([]byte, chunkSize)
				n, err := in.read(place{0, "f"}, open, buf[:ask], int64(off))
				if err != nil || !bytes.Equal(buf[:n], want) {
					t.Errorf("evicted %v: of %d bytes at %d came %d (%v), or others than these", evicted, ask, off, n, err)
				}
			}
		}
		if evicted && !in.refuse && mostlyCached(f, chunkSize, chunkSize) {
			var st unix.Cachestat_t
			if unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: chunkSize, Len: chunkSize}, &st, 0) == nil {
				t.Errorf("%d pages of a chunk that was read are in the page cache", st.Cache)
			}
		}
		if err := in.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTornPagesAreReadAgain reads a page of a later segment that the server has half written: it is read again until it is whole, taken as it
// is where WAL of the window brings it, and named, by its number among all of the relation, where it stays wrong.
func TestTornPagesAreReadAgain(t *testing.T) {
	t.Parallel()
	const size, block = 8192, 1<<30/8192 + 1 // the second page of the segment .1
	whole := bytes.Repeat([]byte("row "), 2*size/4)
	write := func(page []byte, lsn ag.LSN, number uint32) {
		binary.NativeEndian.PutUint32(page[pageLSN:], uint32(lsn>>32))
		binary.NativeEndian.PutUint32(page[pageLSN+4:], uint32(lsn))
		binary.NativeEndian.PutUint16(page[pageUpper:], size)
		binary.NativeEndian.PutUint16(page[pageChecksum:], checksum(page, number))
	}
	write(whole[:size], 50, block-1)
	write(whole[size:], 500, block)
	torn := bytes.Clone(whole)
	clear(torn[size+4096:])
	for _, c := range []struct {
		name    string
		insert  ag.LSN // how far WAL has come
		mended  int    // at which look the server has written all of it; 0: never
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
			var in fileReader
			buf := make([]byte, chunkSize)
			n, err := r.read(t.Context(), &in, path, file{Name: "base/5/16384.1", Size: 2 * size}, 0, buf[:2*size])
			var bad *CorruptError
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
			if err := in.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
