package seeding

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// space makes a tablespace with a table of 1000 rows in it, both of that name, and returns its id.
func (b *bed) space(t *testing.T, sock, name, location string) (oid string) {
	t.Helper()
	b.must(t, sock, fmt.Sprintf("CREATE TABLESPACE %s LOCATION '%s'", name, location))
	b.must(t, sock, fmt.Sprintf("CREATE TABLE %s TABLESPACE %[1]s AS SELECT generate_series(1, 1000) i", name))
	return b.must(t, sock, fmt.Sprintf("SELECT oid::text FROM pg_tablespace WHERE spcname = '%s'", name))
}

// TestSeedsATablespaceBehindALink copies a tablespace whose place is a symbolic link on both sides, into nothing and
// over an older copy.
func TestSeedsATablespaceBehindALink(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	linked := func(link string) {
		if err := os.Mkdir(link+".far", 0o700); err != nil {
			t.Fatal(err)
		}
		b.give(t, link+".far")
		if err := os.Symlink(link+".far", link); err != nil {
			t.Fatal(err)
		}
	}
	here := filepath.Join(b.dir, "linked")
	linked(here)
	oid := b.space(t, sock, "linked", here)
	linked(filepath.Join(filepath.Dir(o.Target), "ts"+oid))
	for range 2 {
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		standby := b.mustStream(t, sock, o)
		if n, err := b.query(t, standby, "SELECT count(*)::text FROM linked"); err != nil || n != "1000" {
			t.Errorf("the copy has %q rows: %v", n, err)
		}
		b.stop(standby)
		b.must(t, sock, "DROP TABLE linked")
		b.must(t, sock, "CREATE TABLE linked TABLESPACE linked AS SELECT generate_series(1, 1000) i")
	}
}
