package tree

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestStoresDirectlyOrNot writes runs that may go to the disk directly and runs that may not, and reads them back. It
// also writes from memory that is not aligned for direct writes.
func TestStoresDirectlyOrNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	content := make([]byte, wire.ChunkSize)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	for name, c := range map[string]struct {
		runs    [][2]int
		shifted bool
		direct  bool
	}{
		"a chunk":        {[][2]int{{0, wire.ChunkSize}}, false, true},
		"long runs":      {[][2]int{{8192, 8192 + fileio.DirectLeast}, {wire.ChunkSize / 2, wire.ChunkSize}}, false, true},
		"a page":         {[][2]int{{8192, 16384}}, false, false},
		"one is short":   {[][2]int{{0, wire.ChunkSize / 2}, {wire.ChunkSize - 8192, wire.ChunkSize}}, false, false},
		"no whole block": {[][2]int{{0, wire.ChunkSize - 1}}, false, false},
		"nothing":        {nil, false, false},
		"odd memory":     {[][2]int{{0, wire.ChunkSize / 2}}, true, true},
	} {
		tr, err := Open(dir, nil, 15)
		if err != nil {
			t.Fatal(err)
		}
		b := content
		if c.shifted {
			b = content[1:]
		}
		if got := direct(wire.ChunkSize, c.runs); got != c.direct {
			t.Errorf("%s: directly: %v", name, got)
		}
		var h fileio.LastOpen
		if err := tr.Store(&h, Chunk{wire.File{Name: "f", Size: 2 * wire.ChunkSize}, wire.ChunkSize, b, c.runs}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range c.runs {
			if !bytes.Equal(got[wire.ChunkSize+run[0]:wire.ChunkSize+run[1]], b[run[0]:run[1]]) {
				t.Errorf("%s: what was written is not there", name)
			}
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		tr.Close()
		if err := os.Remove(filepath.Join(dir, "f")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRoomOfOneFileSystem checks that a tablespace beside the data directory does not get the same room once more.
func TestRoomOfOneFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr, err := Open(dir, map[uint32]string{7: t.TempDir()}, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	free, err := fileio.FreeSpace(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := []wire.File{{Name: "base/5/1", Size: free * 2 / 3}, {Space: 7, Name: "PG_15_1/5/1", Size: free * 2 / 3}}
	if err := tr.CheckRoom(files[:1], []int64{0}); err != nil {
		t.Errorf("two thirds of what is free: %v", err)
	}
	if err := tr.CheckRoom(files, []int64{free * 2 / 3, 0}); err != nil {
		t.Errorf("the same where half is there: %v", err)
	}
	if err := tr.CheckRoom(files, []int64{0, 0}); !errors.Is(err, ErrNoRoom) {
		t.Errorf("twice two thirds of what is free: %v", err)
	}
}
