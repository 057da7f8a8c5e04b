package linkbench

import (
	"os"
	"testing"

	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// TestBenchNetworksBeside: two benches that need a network at the same time get one each.
func TestBenchNetworksBeside(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("waits for three seconds; make test-long runs it (COTERIE_LONG=1)")
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: networks need root")
	}
	seen := map[string]bool{}
	for range 2 {
		n, err := startBeside(linkem.Options{Nodes: benchNodes})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		}()
		if name := n.Namespace("n1"); seen[name] || !linkem.Exists(name) {
			t.Errorf("namespace %s is another's, or not there", name)
		} else {
			seen[name] = true
		}
	}
}
