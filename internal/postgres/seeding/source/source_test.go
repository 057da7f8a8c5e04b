package source

import (
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestSourceMakesOneHeavyCopyAtATime fills a source with a window that is heavy.
func TestSourceMakesOneHeavyCopyAtATime(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	w := &window{member: "n2", files: []wire.File{{Name: "big", Size: heavyBytes}}}
	s.windows["w"] = w
	if got := s.others("n3"); len(got) != 1 || got[0] != "n2" {
		t.Errorf("n3 waits for %v", got)
	}
	if got := s.others("n2"); got != nil {
		t.Errorf("n2 waits for itself: %v", got)
	}
	w.done = time.Now()
	if got := s.others("n3"); got != nil {
		t.Errorf("n3 waits for a copy that is finished: %v", got)
	}
	w.done, w.files = time.Time{}, nil
	if got := s.others("n3"); got != nil {
		t.Errorf("n3 waits for a small copy: %v", got)
	}
}
