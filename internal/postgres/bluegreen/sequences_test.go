package bluegreen

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
)

// TestSequencesAreNoViews has the owner of a sequence put a view in its place after it was listed. The view's function
// must not run as the superuser.
func TestSequencesAreNoViews(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a real server")
	}
	s, err := pgtest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Remove() })
	c, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }()
	run := func(sql string) {
		t.Helper()
		if _, err := c.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	var known bool
	if err := c.QueryRow(t.Context(), "SELECT count(*) > 0 FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'").Scan(&known); err != nil || !known {
		t.Skip("NOT RUN: the server is older than the setting")
	}
	run("CREATE SEQUENCE s; SELECT setval('s', 7)")
	set, err := sequences(t.Context(), c)
	if err != nil || len(set) != 1 || set[0] != "SELECT setval('public.s', '7', 't')" && set[0] != "SELECT setval('public.s', 7, 't')" {
		t.Fatalf("%q, %v", set, err)
	}
	run("CREATE TABLE ran (); CREATE FUNCTION takes() RETURNS bigint LANGUAGE plpgsql AS 'BEGIN ALTER TABLE ran RENAME TO has_run; RETURN 1; END'")
	run("DROP SEQUENCE s; CREATE VIEW s AS SELECT takes() AS last_value, true AS is_called")
	if set, err := valuesOf(t.Context(), c, []string{"SELECT last_value::text FROM public.s"}); err == nil {
		t.Errorf("the view was read: %q", set)
	}
	var there bool
	if err := c.QueryRow(t.Context(), "SELECT to_regclass('has_run') IS NULL").Scan(&there); err != nil || !there {
		t.Errorf("the function has run: %t, %v", !there, err)
	}
}
