package seeding

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
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

// TestSeesATablespaceMadeBeforeTheBackup makes a tablespace after the window has asked for the tablespaces and before
// its checkpoint: nothing of that tablespace is in the WAL that the copy replays.
func TestSeesATablespaceMadeBeforeTheBackup(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	b.must(t, sock, "CREATE DATABASE spare")
	conn, err := connectTo(sock)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	for _, sql := range []string{"BEGIN", "ALTER DATABASE spare RENAME TO spared"} { // the window waits for its end
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var copied error
	var copying sync.WaitGroup
	copying.Go(func() { _, copied = Run(t.Context(), o) })
	waitFor(t, "the window to wait for the database", func() error {
		n, err := b.query(t, sock, "SELECT count(*)::text FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND query LIKE 'SELECT EXISTS (SELECT FROM pg_locks%'")
		if err == nil && n == "0" {
			err = errors.New("it does not")
		}
		return err
	})
	late := filepath.Join(b.dir, "late")
	if err := os.Mkdir(late, 0o700); err != nil {
		t.Fatal(err)
	}
	b.give(t, late)
	b.space(t, sock, "late", late)
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if copying.Wait(); copied != nil {
		t.Fatal(copied)
	}
	standby := b.mustStream(t, sock, o)
	if n, err := b.query(t, standby, "SELECT count(*)::text FROM late"); err != nil || n != "1000" {
		t.Errorf("the copy has %q rows: %v", n, err)
	}
}
