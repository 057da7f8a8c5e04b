package provision

import (
	"os"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// TestMain lets the measurement of the time to fence run this binary as its keeper.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}
