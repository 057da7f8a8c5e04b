package seeding

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/durable"
)

// TestJournalIsReplacedAsAWhole holds that the journal is replaced by package durable, which flushes it. If the new
// file cannot be written, the old journal stays on disk as it was, and the new entry in memory.
func TestJournalIsReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state", "seedings.json")
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	first := j.Begin(Operation{Target: "n2", State: Pending})
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if err := os.Mkdir(path+durable.Suffix, 0o700); err != nil { // in the way of the next file
		t.Fatal(err)
	}
	second := j.Begin(Operation{Target: "n2", State: Pending})
	if now, err := os.ReadFile(path); err != nil || string(now) != string(written) {
		t.Errorf("a write that failed left %q, %v", now, err)
	}
	if op, ok := j.Last(); !ok || op.ID != second {
		t.Errorf("the entry that could not be written is lost: %+v", op)
	}
	if err := os.Remove(path + durable.Suffix); err != nil {
		t.Fatal(err)
	}
	j.Change(second, func(o *Operation) { o.State = Seeding })
	again, err := OpenJournal(path)
	if err != nil || len(again.List()) != 2 || again.List()[0].ID != first || again.List()[0].State != Cancelled || again.List()[1].State != Retrying {
		t.Errorf("read again: %+v, %v", again.List(), err)
	}
	if _, err := os.Lstat(path + durable.Suffix); !os.IsNotExist(err) {
		t.Errorf("a temporary file is left: %v", err)
	}
}
