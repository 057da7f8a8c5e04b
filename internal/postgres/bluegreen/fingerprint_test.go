package bluegreen_test

import (
	"errors"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/bluegreen"
)

// TestChanged compares fingerprints. One that an older version took, with or without the number of its catalogs, is
// not read as a change of definitions.
func TestChanged(t *testing.T) {
	for _, c := range []struct {
		then, now string
		want      error
	}{
		{"a1.x.y", "a1.x.y", nil},
		{"a1.x.y", "a1.x.z", bluegreen.ErrChanged},
		{"a1.x.y", "a1.x", bluegreen.ErrChanged},
		{"b2.x.y", "a1.x.y", bluegreen.ErrOtherCatalogs},
		{"x.y", "a1.x.y", bluegreen.ErrOtherCatalogs},
		{"a1", "a1.x", bluegreen.ErrOtherCatalogs},
		{"", "a1.x", bluegreen.ErrOtherCatalogs},
	} {
		if err := bluegreen.Changed(c.then, c.now); !errors.Is(err, c.want) {
			t.Errorf("Changed(%q, %q) = %v, want %v", c.then, c.now, err, c.want)
		}
	}
}
