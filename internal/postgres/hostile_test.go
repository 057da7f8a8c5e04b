package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/session"
)

// TestEverySettingOfADatabase has the owner of the agent's database set all that the owner may set, to each extreme.
// Every question of the agent is answered all the same, on the primary and on a secondary. So a setting of a later
// version of PostgreSQL is tried, too.
func TestEverySettingOfADatabase(t *testing.T) {
	p := newPrimary(t, false)
	for _, sql := range []string{"CREATE ROLE owner", "CREATE DATABASE sound", "ALTER DATABASE postgres OWNER TO owner"} {
		p.sql(sql)
	}
	if err := p.EnsureSlots(t.Context(), []string{"cot_n2"}, nil); err != nil {
		t.Fatal(err)
	}
	s := p.clone("cot_n2")
	s.start(false)
	s.streams(p)
	owner, own := agentsIn(t, p, "template1"), agentsIn(t, s, "template1")
	defer session.Close(owner)
	defer session.Close(own)
	all := extremes(t, owner)
	if _, err := owner.Exec(t.Context(), "SET ROLE owner"); err != nil {
		t.Fatal(err)
	}
	// try has the agent ask both servers in new sessions, with these settings of the database.
	try := func(names []string, nth int) (refused []string, err error) {
		for _, name := range names {
			set := fmt.Sprintf("ALTER DATABASE postgres SET %s = '%s'", name, all[name][min(nth, len(all[name])-1)])
			if _, err := owner.Exec(t.Context(), set); err != nil {
				refused = append(refused, set)
			}
		}
		var at string
		if err := owner.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&at); err != nil {
			t.Fatal(err)
		}
		s.waitFor("the settings to be replayed", func(ctx context.Context) error {
			var there bool
			err := own.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn", at).Scan(&there)
			if err == nil && !there {
				err = errors.New("not yet")
			}
			return err
		})
		err = errors.Join(asksAll(t.Context(), p), asksAll(t.Context(), s))
		if _, err := owner.Exec(t.Context(), "ALTER DATABASE postgres RESET ALL"); err != nil {
			t.Fatal(err)
		}
		return refused, err
	}
	names, most := []string(nil), 0
	for name, values := range all {
		names, most = append(names, name), max(most, len(values))
	}
	slices.Sort(names)
	for nth := range most {
		refused, err := try(names, nth)
		t.Logf("%d settings, of which these are refused: %q", len(names), refused)
		if err == nil {
			continue
		}
		t.Errorf("with all of them: %v", err)
		for _, name := range names {
			if _, err := try([]string{name}, nth); err != nil {
				t.Errorf("%s = %s: %v", name, all[name][min(nth, len(all[name])-1)], err)
			}
		}
	}
}

// extremes returns the values at the ends of what every role may set, by the name of the setting.
func extremes(t *testing.T, c *pgx.Conn) map[string][]string {
	t.Helper()
	rows, err := c.Query(t.Context(), `SELECT name, CASE vartype WHEN 'bool' THEN '{off,on}' WHEN 'enum' THEN enumvals WHEN 'string' THEN '{"",none,posix/Asia/Kolkata,"sql, mdy"}'
		ELSE ARRAY[min_val, max_val] END FROM pg_settings WHERE context = 'user'`)
	if err != nil {
		t.Fatal(err)
	}
	all, name, values := map[string][]string{}, "", []string(nil)
	if _, err := pgx.ForEachRow(rows, []any{&name, &values}, func() error { all[name] = slices.Clone(values); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

// asksAll asks a server what the agent asks, in new sessions.
func asksAll(ctx context.Context, s *server) error {
	err := s.Close()
	ask := func(what string, err2 error) {
		if err2 != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", what, err2))
		}
	}
	o, err2 := s.Observe(ctx)
	ask("observe", err2)
	_, err2 = s.Walsenders(ctx)
	ask("walsenders", err2)
	_, err2 = s.CurrentFlush(ctx)
	ask("end of WAL", err2)
	ask("answer", s.Answer(ctx))
	if !o.InRecovery {
		ask("commit", s.Commit(ctx))
	}
	faults, err2 := s.Databases(ctx, nil)
	ask("databases", err2)
	for _, f := range faults {
		ask("database "+f.Database, errors.New(f.Err))
	}
	_, err2 = s.Settings(ctx)
	ask("settings", err2)
	_, err2 = s.Verifier(ctx, "owner")
	ask("role", err2)
	f, err2 := s.Fingerprint(ctx, "owner", "sound")
	ask("fingerprint", err2)
	if f.Exclusive {
		ask("fingerprint", errors.New("the role or the database is not found"))
	}
	_, err2 = s.Defaults(ctx, "owner", "sound")
	ask("defaults", err2)
	_, err2 = s.Archiver(ctx)
	ask("archiver", err2)
	ask("end writers", s.EndWriters(ctx))
	_, err2 = s.EndOfWAL(ctx)
	ask("end of whole records", err2)
	return err
}

// TestNamesOfRolesAndDatabases has a role whose name, and whose database's, is no text in UTF-8: a database that takes
// any bytes lets every role with CREATEDB make such a name. The agent's questions are answered all the same, also where
// its own database is such a one.
func TestNamesOfRolesAndDatabases(t *testing.T) {
	p := newPrimary(t, false)
	as := func(user, database string) *pgx.Conn {
		t.Helper()
		c, err := p.server.ConnConfig(database)
		if err != nil {
			t.Fatal(err)
		}
		c.User, c.RuntimeParams["client_encoding"] = user, "SQL_ASCII"
		if user != p.server.Superuser {
			delete(c.RuntimeParams, "session_preload_libraries")
		}
		conn, err := pgx.ConnectConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	run := func(database string, statements ...string) {
		t.Helper()
		conn := as(p.server.Superuser, database)
		defer session.Close(conn)
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
	}
	const name, bytes = "caf\xe9 \"'\n\x1b", " TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'"
	quoted := pgx.Identifier{name}.Sanitize()
	run("template1", "CREATE ROLE owner", "CREATE DATABASE sound", "CREATE DATABASE bytes"+bytes)
	run("bytes", "CREATE ROLE "+quoted+" LOGIN", "CREATE DATABASE "+quoted+bytes+" OWNER "+quoted)
	for _, of := range []string{"UTF8", "SQL_ASCII"} {
		writer := as(name, name)
		defer session.Close(writer)
		if _, err := writer.Exec(t.Context(), "BEGIN; SELECT pg_current_xact_id()"); err != nil {
			t.Fatal(err)
		}
		if err := asksAll(t.Context(), p); err != nil {
			t.Errorf("in a database of %s: %v", of, err)
		}
		if writer.Ping(t.Context()) == nil {
			t.Errorf("in a database of %s: a session that writes was not ended", of)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if of == "UTF8" {
			run("template1", "DROP DATABASE postgres", "CREATE DATABASE postgres"+bytes)
		}
	}
}
