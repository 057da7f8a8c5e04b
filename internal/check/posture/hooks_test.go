package posture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/check"
	"github.com/coteriedb/coterie/internal/config"
)

// TestHooks holds what is found of a directory of commands: none, one in order, files that are not run, and one to
// which others may write.
func TestHooks(t *testing.T) {
	t.Parallel()
	l, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if found := judgeHooks(l); len(found) != 0 {
		t.Errorf("without a directory: %v", found)
	}
	says := func(level check.Level, want string) {
		t.Helper()
		for _, f := range judgeHooks(l) {
			if f.Level == level && strings.Contains(f.What, want) {
				return
			}
		}
		t.Errorf("no %s with %q in %v", level, want, judgeHooks(l))
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(l.Hooks(), 0o700))
	says(check.OK, "runs no command")
	must(os.WriteFile(filepath.Join(l.Hooks(), "50-webhook"), nil, 0o700))
	must(os.WriteFile(filepath.Join(l.Hooks(), "README"), nil, 0o600))
	says(check.OK, "as the node's user: 50-webhook")
	says(check.Warning, "README may not be executed, and is not run")
	must(os.Chmod(l.Hooks(), 0o777))
	says(check.Problem, "no command of hooks.d is run")
}
