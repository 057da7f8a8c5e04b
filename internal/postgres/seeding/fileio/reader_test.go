package fileio

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestReadsPastTheCacheOrNot reads chunks of a file that is in the page cache and of one that is not, whole ones and
// the last. All hold the written bytes, also recent ones, and pages that were not in the cache are not there
// afterwards.
func TestReadsPastTheCacheOrNot(t *testing.T) {
	t.Parallel()
	content := make([]byte, 2*wire.ChunkSize+100_001)
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
		var in Reader
		for off := 0; off < len(content)+wire.ChunkSize; off += wire.ChunkSize {
			want := content[min(off, len(content)):min(off+wire.ChunkSize, len(content))]
			for _, ask := range []int{wire.ChunkSize, len(want)} {
				buf := make([]byte, wire.ChunkSize)
				n, err := in.Read(Entry{0, "f"}, open, buf[:ask], int64(off))
				if err != nil || !bytes.Equal(buf[:n], want) {
					t.Errorf("evicted %v: of %d bytes at %d came %d (%v), or others than these", evicted, ask, off, n, err)
				}
			}
		}
		if evicted && !in.refuse && mostlyCached(f, wire.ChunkSize, wire.ChunkSize) {
			var st unix.Cachestat_t
			if unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: wire.ChunkSize, Len: wire.ChunkSize}, &st, 0) == nil {
				t.Errorf("%d pages of a chunk that was read are in the page cache", st.Cache)
			}
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
}
