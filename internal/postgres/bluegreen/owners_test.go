package bluegreen_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

// TestOwnersWriteTheirRows has the owner of a table plant a function in an index that takes all rights where it runs as
// a superuser. The rows are copied and replicated to green, where it must not.
func TestOwnersWriteTheirRows(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	if w.Install.Major < 16 {
		t.Skip("NOT RUN: before PostgreSQL 16 the superuser writes the rows; set COTERIE_GREEN_TO to a later version")
	}
	w.Keep = true
	const takes = `CREATE FUNCTION takes() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN
		IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN ALTER ROLE owner SUPERUSER; END IF; END $f$`
	const hides = `CREATE FUNCTION hides(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN PERFORM s.takes(); RETURN i; END $f$`
	w.exec(t, "", "CREATE ROLE owner", `CREATE DATABASE "it's \ theirs" OWNER owner`)
	w.exec(t, `it's \ theirs`, `ALTER DATABASE "it's \ theirs" SET standard_conforming_strings = off`,
		"CREATE SCHEMA s AUTHORIZATION owner", "SET ROLE owner", "SET search_path = s", takes, hides, "CREATE TABLE t (i int PRIMARY KEY)", "CREATE INDEX ON t (hides(i))", "INSERT INTO t VALUES (1)",
		"CREATE TABLE forced (i int PRIMARY KEY)", "ALTER TABLE forced ENABLE ROW LEVEL SECURITY", "ALTER TABLE forced FORCE ROW LEVEL SECURITY",
		"CREATE TABLE given (i int PRIMARY KEY)", "REVOKE INSERT ON given FROM owner")
	f, err := w.Look(t.Context())
	all, notes := strings.Join(f.Obstacles, "\n"), strings.Join(f.Notes, "\n")
	if err != nil || len(f.Obstacles) != 2 || !strings.Contains(all, "ALTER TABLE s.forced NO FORCE ROW LEVEL SECURITY") || !strings.Contains(all, "GRANT INSERT, UPDATE, DELETE, TRUNCATE ON s.given TO owner") {
		t.Fatalf("%v: %s", err, all)
	}
	if told := strings.Contains(notes, "rows of 3 tables on the old cluster"); told != (w.older.Major < 16) {
		t.Errorf("from %d: %s", w.older.Major, notes)
	}
	w.exec(t, `it's \ theirs`, "ALTER TABLE s.forced NO FORCE ROW LEVEL SECURITY", "GRANT ALL ON s.given TO owner")
	w.filled(t)
	w.exec(t, `it's \ theirs`, "SET ROLE owner", "INSERT INTO s.t VALUES (2)", "INSERT INTO s.forced VALUES (1)", "INSERT INTO s.given VALUES (1)")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n := 0
	err = retry.Until(ctx, 50*time.Millisecond, func() (bool, error) {
		c, err := w.Green(ctx, `it's \ theirs`)
		if err != nil {
			return false, err
		}
		defer session.Close(c)
		err = c.QueryRow(ctx, "SELECT (SELECT count(*) FROM s.t) + (SELECT count(*) FROM s.forced) + (SELECT count(*) FROM s.given)").Scan(&n)
		return n == 4, err
	})
	if err != nil {
		t.Fatalf("%d rows: %v", n, err)
	}
	w.has(t, "postgres", "SELECT rolsuper FROM pg_roles WHERE rolname = 'owner'", "false")
}

// TestSettingsOfAnOwner has the owner of a database make its sessions read-only, and load a library that is not there,
// which must not keep the group from an upgrade: definitions and rows are taken over all the same.
func TestSettingsOfAnOwner(t *testing.T) {
	if !asServer(t) {
		return
	}
	w := newTwins(t)
	w.exec(t, "", "CREATE ROLE owner", "CREATE DATABASE theirs OWNER owner")
	w.exec(t, "theirs", "CREATE TABLE t (i int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "SET ROLE owner", "ALTER DATABASE theirs SET default_transaction_read_only = on",
		"ALTER DATABASE theirs SET local_preload_libraries = none")
	w.filled(t)
	w.exec(t, "theirs", "INSERT INTO t VALUES (2)")
	n := 0
	err := retry.Until(t.Context(), 50*time.Millisecond, func() (bool, error) {
		c, err := w.Green(t.Context(), "theirs")
		if err != nil {
			return false, err
		}
		defer session.Close(c)
		err = c.QueryRow(t.Context(), "SELECT count(*) FROM public.t").Scan(&n)
		return n == 2, err
	})
	if err != nil {
		t.Fatalf("%d rows: %v", n, err)
	}
}
