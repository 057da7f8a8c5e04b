package nodecmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestPortsOfANodeDiffer holds that two uses of one port are refused before anything is made or asked for: a node of
// them would join its group and could not start.
func TestPortsOfANodeDiffer(t *testing.T) {
	f := NodeFlags{name: "n1", address: "127.0.0.1", Endpoint: "127.0.0.1:0", ReadWrite: "127.0.0.1:48123", ReadOnly: ":48123"}
	_, err := f.config(t.Context(), "replica")
	if fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), "--read-write and --read-only cannot both be :48123") {
		t.Errorf("one port for writers and readers: %v", err)
	}
	f.ReadOnly = ""
	if _, err := f.config(t.Context(), "replica"); err != nil {
		t.Error(err)
	}
}
