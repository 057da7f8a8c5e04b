package docs

import (
	"fmt"
	"regexp"
	"testing"
)

// faultRow is a row of the catalogue: its number, and the cell with its tests.
var faultRow = regexp.MustCompile(`(?m)^\| (F\d\db?) \|.*\| ([^|]+) \|$`)

// real are the tests on real nodes in the cell of a row; reason is what it says behind its last test.
var (
	real   = regexp.MustCompile("\\breal\\b[^:;|]*: `Test|[Rr]eal, [^:;|]*: `Test")
	reason = regexp.MustCompile("^[^`]*$|`[^`.]*\\. ([^`]{20,})$")
)

// TestEveryFaultIsAnswered checks that the catalogue has every number once, that each names only tests that exist, and
// that it names one on real nodes or says why there is none.
func TestEveryFaultIsAnswered(t *testing.T) {
	there := tests(t)
	found := map[string]bool{}
	for _, m := range faultRow.FindAllStringSubmatch(pages(t)["docs/internals/faults.md"], -1) {
		if found[m[1]] {
			t.Errorf("%s is there twice", m[1])
		}
		found[m[1]] = true
		named := testName.FindAllStringSubmatch(m[2], -1)
		if !real.MatchString(m[2]) && !reason.MatchString(m[2]) {
			t.Errorf("%s has no test on real nodes and does not say why: %s", m[1], m[2])
		}
		for _, n := range named {
			if !there[n[1]] {
				t.Errorf("%s: there is no %s", m[1], n[1])
			}
		}
	}
	for i := 1; i <= 70; i++ {
		if n := fmt.Sprintf("F%02d", i); !found[n] {
			t.Errorf("%s is not in the catalogue", n)
		}
	}
	if !found["F40b"] || len(found) != 71 {
		t.Errorf("%d faults found", len(found))
	}
}
