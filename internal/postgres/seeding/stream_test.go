package seeding

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestZerosTakeNoRoom reserves the room of a file and gives back that of a chunk of zeros; a file of one chunk needs
// none.
func TestZerosTakeNoRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr, err := tree.Open(dir, nil, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	files := []wire.File{{Name: "big", Size: 3*wire.ChunkSize + 100}, {Name: "small", Size: wire.ChunkSize}, {Name: "had", Size: 2 * wire.ChunkSize}}
	if err := tr.Reserve(files, []int64{0, 0, 2 * wire.ChunkSize}); err != nil {
		t.Fatal(err)
	}
	if fileio.Exists(filepath.Join(dir, "small")) || fileio.Exists(filepath.Join(dir, "had")) {
		t.Error("room was made for what needs none")
	}
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, "big"), &st); err != nil || st.Size != files[0].Size {
			t.Fatalf("%d bytes (%v)", st.Size, err)
		}
		return st.Blocks
	}
	before := blocks()
	if before < 3*wire.ChunkSize/512 {
		t.Skip("this file system does not reserve room")
	}
	c := &fetcher{s: &seeder{tree: tr}}
	if err := c.zero(files[0], &asked{off: wire.ChunkSize}, wire.ChunkSize); err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if after := blocks(); before-after != wire.ChunkSize/512 {
		t.Errorf("%d blocks became %d", before, after)
	}
}
