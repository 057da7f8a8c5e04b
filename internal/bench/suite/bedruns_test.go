package suite

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/bench/seedbench"
)

// TestSeedingOfAllIsPublishedOrScaled: without disk space for the published size, a smaller copy is made and labelled
// as scaled.
func TestSeedingOfAllIsPublishedOrScaled(t *testing.T) {
	last := func(quick, published bool) Experiment {
		runs := AllBedRuns(quick, published)
		experiments := runs[len(runs)-1].Experiments
		return experiments[len(experiments)-1]
	}
	for _, p := range []Experiment{last(false, true), last(false, false), last(true, false)} {
		if p.Name != "seeding" {
			t.Fatalf("the last of all is %s", p.Name)
		}
	}
	o := seedbench.SeedingOptions{SizeMB: 1 << 40, OtherwiseMB: 64}
	if why := o.Fit(); o.SizeMB != 64 || !strings.Contains(why, "caled") || !strings.Contains(why, "free") {
		t.Errorf("%d MB, %q", o.SizeMB, why)
	}
	o = seedbench.SeedingOptions{SizeMB: 1, OtherwiseMB: 64}
	if why := o.Fit(); o.SizeMB != 1 || why != "" {
		t.Errorf("%d MB, %q", o.SizeMB, why)
	}
	o = seedbench.SeedingOptions{SizeMB: 1 << 40}
	if why := o.Fit(); o.SizeMB != 1<<40 || why != "" {
		t.Errorf("%d MB, %q", o.SizeMB, why)
	}
}
