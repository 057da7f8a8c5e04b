// Package majors finds two major versions of PostgreSQL between which a test can upgrade. Only tests import it.
//
// Beside the installations that the product finds, it looks into the cache of scripts/test-majors. Start reading at
// Two.
package majors

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// caches are the places below the cache of scripts/test-majors where fetched servers are.
var caches = []string{"*/bin", "*/*/bin", "*/*/*/bin"}

// Two returns the two oldest versions here between which pg_upgrade can be run. Without them the test is skipped.
func Two(t testing.TB) (older, newer programs.Install) {
	t.Helper()
	older, newer, ok := Find(t)
	if !ok {
		t.Skip("NOT RUN: no two major versions of PostgreSQL with pg_upgrade are here; install a second one, or let make test-majors fetch it")
	}
	return older, newer
}

// Find is Two, and reports whether there are any.
func Find(t testing.TB) (older, newer programs.Install, ok bool) {
	t.Helper()
	found := all(t)
	for _, from := range found {
		for _, to := range found {
			better := newer.Major == 0 || from.Major < older.Major || from.Major == older.Major && to.Major < newer.Major
			if to.Major > from.Major && better && len(pgupgrade.Missing(from, to)) == 0 {
				older, newer = from, to
			}
		}
	}
	return older, newer, newer.Major != 0
}

// all lists the installations here, and in the cache.
func all(t testing.TB) []programs.Install {
	t.Helper()
	found, err := programs.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	home, _ := os.UserCacheDir()
	for _, parent := range []string{"/var/cache", home} {
		for _, pattern := range caches {
			dirs, _ := filepath.Glob(filepath.Join(parent, "coterie-postgres", pattern)) // the pattern is well formed
			for _, dir := range dirs {
				if in, err := programs.Inspect(t.Context(), dir); err == nil {
					found = append(found, in)
				}
			}
		}
	}
	return found
}

// Of returns the installation of a major version here. Without one the test is skipped.
func Of(t testing.TB, version string) programs.Install {
	t.Helper()
	for _, in := range all(t) {
		if strconv.Itoa(in.Major) == version {
			return in
		}
	}
	t.Skipf("NOT RUN: PostgreSQL %s is not here; let make test-majors fetch it", version)
	return programs.Install{}
}
