package pgupgrade_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/pgfiles"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
)

// exec runs statements on a running server.
func (c *cluster) exec(t *testing.T, statements ...string) {
	t.Helper()
	conn := c.connect(t, "postgres")
	for _, s := range statements {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	_ = conn.Close(t.Context())
}

// TestRealServerWhatGoesAlong upgrades a cluster with what is not in ordinary tables, by copy and by links.
func TestRealServerWhatGoesAlong(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("runs pg_upgrade twice; COTERIE_LONG=1 runs it")
	}
	if !asServer(t, t.Name()) {
		return
	}
	c := newCluster(t)
	c.exec(t, "CREATE UNLOGGED TABLE unlogged AS SELECT i FROM generate_series(1, 100) AS i", "SELECT lo_from_bytea(4711, 'large')", "COMMENT ON LARGE OBJECT 4711 IS 'kept'",
		"CREATE SEQUENCE s", "SELECT nextval('s'), nextval('s')", "CREATE ROLE r LOGIN", "GRANT SELECT ON LARGE OBJECT 4711 TO r", "CREATE DATABASE other")
	c.stop(t, c.job.Old)
	for _, link := range []bool{false, true} {
		c.job.Link = link
		if err := c.job.Make(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.start(t, c.job.New)
		conn := c.connect(t, "postgres")
		var rows, next, databases int
		var large, comment, kind string
		err := conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM unlogged), nextval('s'), (SELECT count(*) FROM pg_database WHERE datname = 'other'),
			convert_from(lo_get(4711), 'UTF8'), (SELECT description FROM pg_description WHERE objoid = 4711), (SELECT relpersistence::text FROM pg_class WHERE relname = 'unlogged')`).
			Scan(&rows, &next, &databases, &large, &comment, &kind)
		if err != nil || rows != 100 || next != 3 || databases != 1 || large != "large" || comment != "kept" || kind != "u" {
			t.Errorf("link %v: %d rows, nextval %d, %d databases, %q, %q, %q, %v", link, rows, next, databases, large, comment, kind, err)
		}
		_ = conn.Close(t.Context())
		c.stop(t, c.job.New)
		if !link {
			if err := c.job.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRealServerWhatDoesNotGoAlong refuses what pg_upgrade would lose, or put where nobody removes it: while the server
// runs, and once more after its end, as it may have been made in between.
func TestRealServerWhatDoesNotGoAlong(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("starts several servers; COTERIE_LONG=1 runs it")
	}
	if !asServer(t, t.Name()) {
		return
	}
	c := newCluster(t)
	c.exec(t, "ALTER SYSTEM SET wal_level = logical", "ALTER SYSTEM SET max_prepared_transactions = 2")
	c.stop(t, c.job.Old)
	c.start(t, c.job.Old)
	place := filepath.Join(c.dir, "space")
	if err := os.Mkdir(place, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ makes, says, late, ends string }{
		{"SELECT pg_create_logical_replication_slot('mine', 'pgoutput')", "logical replication slots, which would be lost: mine", "the logical replication slot mine", "SELECT pg_drop_replication_slot('mine')"},
		{"CREATE TABLESPACE beside LOCATION '" + place + "'", "tablespaces, which this command does not take along: beside", "a tablespace was made", "DROP TABLESPACE beside"},
		{"BEGIN; INSERT INTO kept VALUES (0); PREPARE TRANSACTION 'half'", "prepared transactions, which pg_upgrade refuses: half", "prepared transactions", "ROLLBACK PREPARED 'half'"},
		{"CREATE SUBSCRIPTION far CONNECTION 'dbname=none' PUBLICATION p WITH (connect = false)", "subscriptions, whose state would be lost: far", "", "ALTER SUBSCRIPTION far SET (slot_name = NONE); DROP SUBSCRIPTION far"},
		{"SELECT pg_create_physical_replication_slot('plain')", "", "", ""},
		{"ALTER SYSTEM SET archive_mode = on; SELECT pg_reload_conf()", "", "", "ALTER SYSTEM RESET archive_mode; SELECT pg_reload_conf()"},
	} {
		c.exec(t, strings.Split(x.makes, "; ")...)
		archive := strings.Contains(x.makes, "archive_mode")
		d := c.describe(t)
		for deadline := time.Now().Add(time.Minute); d.Archive.Pending != archive && time.Now().Before(deadline); { // a reload takes a moment
			d = c.describe(t)
		}
		if all := strings.Join(d.Obstacles, "\n"); (all == "") != (x.says == "") || !strings.Contains(all, x.says) {
			t.Errorf("%s: %q", x.makes, all)
		}
		if d.Archive.Mode != "off" || d.Archive.Pending != archive {
			t.Errorf("%s: %+v", x.makes, d.Archive)
		}
		if x.late != "" {
			c.stop(t, c.job.Old)
			if err := c.job.Make(t.Context()); err == nil || !strings.Contains(err.Error(), x.late) {
				t.Errorf("%s after the end of the server: %v", x.makes, err)
			}
			if err := c.job.Undo(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(place); err != nil || len(left) > 1 {
				t.Errorf("%s: pg_upgrade has left %v, %v", x.makes, left, err)
			}
			c.start(t, c.job.Old)
		}
		if x.ends != "" {
			c.exec(t, strings.Split(x.ends, "; ")...)
		}
	}
	c.stop(t, c.job.Old)
	if err := c.job.Make(t.Context()); err != nil { // with the physical slot
		t.Error(err)
	}
	if _, err := os.Stat(c.job.New.Data); errors.Is(err, os.ErrNotExist) {
		t.Error("no new cluster was made")
	}
}

// TestRealServerOwners has a role that is no superuser plant functions that take all rights where one runs them. The
// look has to name the role as long as PostgreSQL runs them while it takes the definitions over.
func TestRealServerOwners(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("runs pg_upgrade; COTERIE_LONG=1 runs it")
	}
	if !asServer(t, t.Name()) {
		return
	}
	c := newCluster(t)
	if d := c.describe(t); len(d.Owners) > 0 {
		t.Errorf("owners in a cluster that has none: %q", d.Owners)
	}
	c.exec(t, `CREATE ROLE "sly one"`, "CREATE ROLE honest", `CREATE SCHEMA s AUTHORIZATION "sly one"`, "GRANT CREATE ON SCHEMA public TO honest", "SET ROLE honest", "CREATE TABLE public.plain (i int)",
		"RESET ROLE", `SET ROLE "sly one"`,
		`CREATE FUNCTION s.takes() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN
			IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN ALTER ROLE "sly one" SUPERUSER; END IF; END $f$`,
		"CREATE FUNCTION s.hides(i int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN PERFORM s.takes(); RETURN true; END $f$",
		"CREATE TABLE s.parent (i int) PARTITION BY LIST (i)", "CREATE TABLE s.part (i int CHECK (s.hides(1)))", "ALTER TABLE s.parent ATTACH PARTITION s.part FOR VALUES IN (1)")
	if d := c.describe(t); len(d.Owners) != 1 || d.Owners[0] != "sly one" {
		t.Errorf("owners %q", d.Owners)
	}
	c.stop(t, c.job.Old)
	if err := c.job.Make(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.start(t, c.job.New)
	conn := c.connect(t, "postgres")
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	var took bool
	if err := conn.QueryRow(t.Context(), "SELECT rolsuper FROM pg_roles WHERE rolname = 'sly one'").Scan(&took); err != nil || !took {
		t.Errorf("the function did not run as the superuser (%v): PostgreSQL %s may have mended that, and the look need not name owners for it", err, c.job.New.Install.Version)
	}
}

// describe looks at the running server.
func (c *cluster) describe(t *testing.T) pgupgrade.Cluster {
	t.Helper()
	ctl, err := pgfiles.ParseControl(c.tool(t, filepath.Join(c.job.Old.Install.BinDir, "pg_controldata"), "-D", c.job.Old.Data))
	if err != nil {
		t.Fatal(err)
	}
	open := func(_ context.Context, database string) (*pgx.Conn, error) { return c.open(t, database) }
	d, err := pgupgrade.Describe(t.Context(), open, ctl, c.job.New.Install.Major)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
