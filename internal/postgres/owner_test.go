package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/session"
)

// TestSettingsOfADatabase holds that the owner of a database cannot have the agent's sessions there read a text
// otherwise than it was quoted, act as another role, or find other functions.
func TestSettingsOfADatabase(t *testing.T) {
	p := newPrimary(t, false)
	run := func(database string, statements ...string) (got string) {
		t.Helper()
		c, err := p.server.ConnConfig(database)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		defer session.Close(conn)
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		err = conn.QueryRow(t.Context(), `SELECT concat_ws(' ', current_user, session_user, current_setting('search_path'), length('\\'))`).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := run("postgres", "CREATE ROLE owner", "CREATE DATABASE theirs OWNER owner")
	run("postgres", "SET ROLE owner", "ALTER DATABASE theirs SET standard_conforming_strings = off", "ALTER DATABASE theirs SET role = owner", "ALTER DATABASE theirs SET search_path = evil")
	if got := run("theirs"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
