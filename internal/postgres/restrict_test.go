package postgres

import (
	"maps"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/diagnose"
	"github.com/coteriedb/coterie/internal/postgres/login"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

func testRestrictCancel(t *testing.T, p *server) {
	p.sql("create role mortal login", "create role warden login in role pg_signal_backend", "create database copied template template0")
	for _, database := range []string{"postgres", "copied"} {
		c, err := p.server.ConnConfig(database)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgx.ConnectConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []string{"pg_cancel_backend(int)", "pg_terminate_backend(int, bigint)"} {
			var mortal, warden bool
			q := "select has_function_privilege('mortal', $1, 'execute'), has_function_privilege('warden', $1, 'execute')"
			if err := conn.QueryRow(t.Context(), q, f).Scan(&mortal, &warden); err != nil {
				t.Fatal(err)
			}
			if mortal || !warden {
				t.Errorf("%s in %s: anybody may %v, pg_signal_backend may %v", f, database, mortal, warden)
			}
		}
		session.Close(conn)
	}
	p.sql("drop database copied", "drop role mortal, warden")
}

func testCurrentFlush(t *testing.T, p *server) {
	was, err := p.CurrentFlush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.sql("create table flushed ()", "drop table flushed")
	if is, err := p.CurrentFlush(t.Context()); err != nil || is <= was {
		t.Errorf("flushed %s, then %s, %v", was, is, err)
	}
}

// The mark of a role in a database differs after each change of the settings its sessions begin with, and after no
// other change.
func testMark(t *testing.T, p *server) {
	p.sql("create role marked login", "create role granting", "create role beyond", "create database shop")
	mark := func() login.Fingerprint {
		t.Helper()
		m, err := p.Fingerprint(t.Context(), "marked", "shop")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	was := mark()
	if was.Text == "" || was.Exclusive || was.NotReusable {
		t.Errorf("an ordinary role: %+v", was)
	}
	for _, c := range []struct {
		change        string
		same          bool
		single, fixed bool
	}{
		{"create role unmarked", true, false, false},
		{"create table unmarked ()", true, false, false},
		{"alter role unmarked set work_mem = '9MB'", true, false, false},
		{"alter role marked set work_mem = '9MB'", false, false, false},
		{"alter role marked set work_mem = '9MB'; alter role marked set work_mem = '8MB'", false, false, false},
		{"alter role marked in database shop set work_mem = '9MB'", false, false, false},
		{"alter database shop set work_mem = '9MB'", false, false, false},
		{"alter role all set work_mem = '9MB'", false, false, false},
		{"grant granting to marked", false, false, false},
		{"grant beyond to granting", false, false, false},
		{"revoke beyond from granting", false, false, false},
		{"alter role marked valid until '2100-01-01'", false, false, false},
		{"alter role marked connection limit 3", false, false, false},
		{"alter database shop connection limit 3", false, false, false},
		{"revoke connect on database shop from public", false, false, false},
		{"alter role marked set role = 'granting'", false, false, true},
		{"alter role marked reset role", false, false, false},
		{"alter role marked superuser", false, true, false},
		{"alter role marked nosuperuser replication", false, true, false},
		{"drop role marked; create role marked", false, false, false},
	} {
		p.sql(c.change)
		m := mark()
		if same := m.Text == was.Text; same != c.same || m.Exclusive != c.single || m.NotReusable != c.fixed {
			t.Errorf("%s: the same: %t; %+v", c.change, same, m)
		}
		was = m
	}
	if m, err := p.Fingerprint(t.Context(), "nobody", "shop"); err != nil || !m.Exclusive {
		t.Errorf("nobody: %+v, %v", m, err)
	}
	p.sql("alter role all reset all", "drop database shop", "drop role marked, granting, beyond, unmarked", "drop table unmarked")
}

func testDefaults(t *testing.T, p *server) {
	p.sql("create role reader login", "create database shop", "alter role all set coterie.max_lag = '7s'",
		"alter database shop set coterie.max_lag = '9s'", "alter role reader set default_transaction_read_only = on",
		"alter role reader in database shop set coterie.intent = 'READ_WRITE'", "alter role reader set work_mem = '1MB'")
	for _, c := range []struct {
		user, database string
		want           map[string]string
	}{
		{"reader", "shop", map[string]string{"coterie.max_lag": "9s", "default_transaction_read_only": "on", "coterie.intent": "READ_WRITE"}},
		{"reader", "postgres", map[string]string{"coterie.max_lag": "7s", "default_transaction_read_only": "on"}},
		{"nobody", "shop", map[string]string{"coterie.max_lag": "9s"}},
		{"nobody", "nowhere", map[string]string{"coterie.max_lag": "7s"}},
	} {
		got, err := p.Defaults(t.Context(), c.user, c.database)
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s in %s: %v, %v", c.user, c.database, got, err)
		}
	}
	p.sql("alter role all reset all", "drop database shop", "drop role reader")
}

// testLogSettings finds each value of the settings of the log that may be in force: in the session, in the files, as a
// default of others than superusers, and what others may change.
func testLogSettings(t *testing.T, p *server) {
	read := func() diagnose.LogSettings {
		t.Helper()
		s, err := p.LogSettings(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := read()
	if !slices.Equal(s.Values["logging_collector"], []string{"off"}) || !slices.Contains(s.Values["log_destination"], "stderr") || len(s.Values["log_min_messages"]) == 0 || len(s.Values["lc_messages"]) == 0 || len(s.Defaults)+len(s.Granted) > 0 {
		t.Errorf("at first: %+v", s)
	}
	p.sql("alter system set log_min_messages = 'panic'") // not reloaded: in the file only
	if v := read().Values["log_min_messages"]; !slices.Contains(v, "panic") || !slices.Contains(v, "warning") {
		t.Errorf("a value that is in the file only: %q", v)
	}
	p.sql("alter system reset log_min_messages", "create role app login", "create role boss superuser",
		"alter role app set log_min_messages = 'error'", "alter role boss set log_min_messages = 'error'", "alter database postgres set lc_messages = 'POSIX'",
		"alter role app in database postgres set log_min_messages = 'fatal'", "alter role app set work_mem = '1MB'")
	found := read().Defaults
	for _, want := range []diagnose.LogDefault{{Of: "role app", Name: "log_min_messages", Value: "error"}, {Of: "database postgres", Name: "lc_messages", Value: "POSIX"}, {Of: "role app in database postgres", Name: "log_min_messages", Value: "fatal"}} {
		if !slices.Contains(found, want) {
			t.Errorf("%+v is not in %+v", want, found)
		}
	}
	if len(found) != 3 {
		t.Errorf("%+v", found)
	}
	p.sql("alter database postgres reset all", "alter role app in database postgres reset all")
	if p.Config().Install.Major >= 15 {
		p.sql("grant set on parameter log_min_messages to app", "grant alter system on parameter logging_collector to public", "grant set on parameter lc_messages to boss")
		if granted := read().Granted; len(granted) != 2 || !slices.Contains(granted, "log_min_messages") || !slices.Contains(granted, "logging_collector") {
			t.Errorf("granted: %q", granted)
		}
		p.sql("revoke all on parameter log_min_messages, lc_messages from app, boss", "revoke all on parameter logging_collector from public")
	}
	p.sql("drop role app, boss")
}
