package seeding

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStoresDirectlyOrNot writes runs that may go to the disk directly and some that may not, also from memory that the disk cannot take
// them from, and reads them back.
func TestStoresDirectlyOrNot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	chunk := make([]byte, chunkSize)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range chunk {
		chunk[i] = byte(r.Uint32())
	}
	for name, c := range map[string]struct {
		runs    [][2]int
		shifted bool
		direct  bool
	}{
		"a chunk":        {[][2]int{{0, chunkSize}}, false, true},
		"long runs":      {[][2]int{{8192, 8192 + directLeast}, {chunkSize / 2, chunkSize}}, false, true},
		"a page":         {[][2]int{{8192, 16384}}, false, false},
		"one is short":   {[][2]int{{0, chunkSize / 2}, {chunkSize - 8192, chunkSize}}, false, false},
		"no whole block": {[][2]int{{0, chunkSize - 1}}, false, false},
		"nothing":        {nil, false, false},
		"odd memory":     {[][2]int{{0, chunkSize / 2}}, true, true},
	} {
		tr, err := openTree(dir, nil, 15)
		if err != nil {
			t.Fatal(err)
		}
		b := chunk
		if c.shifted {
			b = chunk[1:]
		}
		if got := direct(chunkSize, c.runs); got != c.direct {
			t.Errorf("%s: directly: %v", name, got)
		}
		var h held
		if err := tr.store(&h, file{Name: "f", Size: 2 * chunkSize}, chunkSize, c.runs, b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range c.runs {
			if !bytes.Equal(got[chunkSize+run[0]:chunkSize+run[1]], b[run[0]:run[1]]) {
				t.Errorf("%s: what was written is not there", name)
			}
		}
		if err := h.close(); err != nil {
			t.Fatal(err)
		}
		tr.close()
		if err := os.Remove(filepath.Join(dir, "f")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestZerosTakeNoRoom reserves the room of a file and gives that of a chunk of zeros back; a file of one chunk needs none.
func TestZerosTakeNoRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr, err := openTree(dir, nil, 15)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	files := []file{{Name: "big", Size: 3*chunkSize + 100}, {Name: "small", Size: chunkSize}, {Name: "had", Size: 2 * chunkSize}}
	if err := tr.reserve(files, []int64{0, 0, 2 * chunkSize}); err != nil {
		t.Fatal(err)
	}
	if exists(filepath.Join(dir, "small")) || exists(filepath.Join(dir, "had")) {
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
	if before < 3*chunkSize/512 {
		t.Skip("this file system does not reserve room")
	}
	c := &fetcher{s: &seeder{tree: tr}}
	if err := c.zero(files[0], &asked{off: chunkSize}, chunkSize); err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	if after := blocks(); before-after != chunkSize/512 {
		t.Errorf("%d blocks became %d", before, after)
	}
}
