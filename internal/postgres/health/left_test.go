package health

import (
	"log/slog"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// TestOneAttemptAtAFile holds that no attempt begins at a file in which one is under way, also if the directory was not
// watched in between, as during a rewind; and that nothing is kept of one that has ended.
func TestOneAttemptAtAFile(t *testing.T) {
	list := []Place{{Name: "the data directory", Dir: t.TempDir()}}
	m := New(Config{Server: &fake{answer: fine, commit: fine, places: list}, Logger: slog.New(slog.DiscardHandler), Found: func() {}})
	m.replace(list)
	first := m.places[list[0].Dir]
	if !first.due(boottime.Now(), 0) {
		t.Fatal("no attempt begins")
	}
	away := func() *place {
		m.attempt(t.Context(), Target{}, boottime.Now())
		if len(m.places) != 0 {
			t.Error("a directory is watched that is being rewritten")
		}
		m.listed.Store(&list)
		m.attempt(t.Context(), Target{Data: true, Wait: time.Minute}, boottime.Now())
		m.waiting.Wait()
		return m.places[list[0].Dir]
	}
	if away() != first {
		t.Error("a second attempt begins beside the first")
	}
	first.ended(nil)
	if away() == first {
		t.Error("results of before are kept")
	}
}
