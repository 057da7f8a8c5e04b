package crashpoints

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

const root = "../../.."

var update = flag.Bool("update", false, "write docs/internals/crashpoints.md")

// TestEveryPointHasAScenario checks that the list of scenarios is that of the points in the code.
func TestEveryPointHasAScenario(t *testing.T) {
	points, err := Find(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(points) < 60 {
		t.Errorf("only %d points found: the pattern that finds them is wrong", len(points))
	}
	inCode, listed := map[string]bool{}, map[string]bool{}
	for _, p := range points {
		if inCode[p.Name] {
			t.Errorf("there are two points %s", p.Name)
		}
		inCode[p.Name] = true
	}
	for _, s := range Scenarios {
		for _, name := range s.Points {
			if listed[name] || !inCode[name] {
				t.Errorf("%s: %q is listed twice, or is not in the code", s.Name, name)
			}
			listed[name] = true
		}
	}
	for name := range inCode {
		if !listed[name] {
			t.Errorf("no scenario has the point %s", name)
		}
	}
}

// TestPage holds the page equal to the code.
func TestPage(t *testing.T) {
	points, err := Find(root)
	if err != nil {
		t.Fatal(err)
	}
	file, want := filepath.Join(root, "docs", "internals", "crashpoints.md"), Page(points)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is not what the code says (%v): run go test ./internal/test/crashpoints -update", file, err)
	}
}
