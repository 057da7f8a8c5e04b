package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/coteriedb/coterie/internal/bench/consolebench"
)

// TestBenchConsole runs a quick measurement of the console: every part is measured, and every open console was told of
// every event.
func TestBenchConsole(t *testing.T) {
	long(t)
	dir, err := os.MkdirTemp(root, "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "samples.json")
	must(t, "bench", "console", "--quick", "--port", strconv.Itoa(freePorts(t)), "--dir", filepath.Join(dir, "lab"), "--out", out)
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var s consolebench.Samples
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	for _, f := range s.Figures {
		if f.NotRun != "" && s.Missing["browser"] == "" {
			t.Errorf("%s was not measured: %s", f.Name, f.NotRun)
		}
	}
	if len(s.First) != 2 || len(s.Rounds) != 1 || len(s.Changes) != 2 {
		t.Fatalf("%+v", s)
	}
	for _, c := range s.Changes {
		for _, e := range c.Events {
			if e.Consoles != s.Consoles {
				t.Errorf("%d of %d consoles were told: %+v", e.Consoles, s.Consoles, e)
			}
		}
		if len(c.Events) == 0 {
			t.Errorf("%s: no event", c.Kind)
		}
	}
	if s.Ends+s.Failed > 0 {
		t.Errorf("%d streams ended and %d requests failed: %s", s.Ends, s.Failed, s.Last)
	}
}
