// Package offloadtest says whether sessions can be offloaded to the kernel where a test runs, so that no test goes
// without in silence.
package offloadtest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/listener/offload"
)

// Missing returns why sessions cannot be offloaded by this process; nil if they can.
func Missing() error {
	k, err := offload.New(offload.Config{})
	if err == nil {
		k.Close()
	}
	return err
}

// Need skips a test on a machine, or for a user, that cannot have sessions offloaded, and says why. Where that should
// work and does not, the test fails.
func Need(t *testing.T) {
	t.Helper()
	err := Missing()
	switch {
	case err == nil:
	case os.Getuid() != 0, errors.Is(err, unix.EPERM), errors.Is(err, offload.ErrUnsupported):
		t.Skipf("NOT RUN: %v", err)
	default:
		t.Fatalf("root can offload sessions to this kernel, and here that fails: %v", err)
	}
}
