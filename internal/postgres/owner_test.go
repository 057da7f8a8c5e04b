package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/postgres/session"
)

// agentsIn opens a session as the agent's are, in a database.
func agentsIn(t *testing.T, p *server, database string) *pgx.Conn {
	t.Helper()
	c, err := p.server.ConnConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestSettingsOfADatabase holds that the owner of a database cannot have the agent's sessions there read a text
// otherwise than it was quoted, act as another role, or find other functions, or lock them out.
func TestSettingsOfADatabase(t *testing.T) {
	p := newPrimary(t, false)
	run := func(database string, statements ...string) (got string) {
		t.Helper()
		conn := agentsIn(t, p, database)
		defer session.Close(conn)
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		err := conn.QueryRow(t.Context(), `SELECT concat_ws(' ', current_user, session_user, current_setting('search_path'), length('\\'))`).Scan(&got)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := run("postgres", "CREATE ROLE owner", "CREATE DATABASE theirs OWNER owner")
	run("postgres", "SET ROLE owner", "ALTER DATABASE theirs SET standard_conforming_strings = off", "ALTER DATABASE theirs SET role = owner", "ALTER DATABASE theirs SET search_path = evil", "ALTER DATABASE theirs SET local_preload_libraries = none", "ALTER DATABASE theirs SET client_encoding = latin1")
	if p.server.Version() >= 15 {
		run("postgres", "GRANT SET ON PARAMETER session_preload_libraries TO owner", "SET ROLE owner", "ALTER DATABASE theirs SET session_preload_libraries = none")
	}
	if faults, err := p.Databases(t.Context(), []string{"theirs"}); err != nil || len(faults) > 0 { // they have the group fail over
		t.Errorf("faults of the database %v, %v", faults, err)
	}
	if got := run("theirs"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestDatabaseOfTheAgent has the owner of the database postgres lock the agent out of it. It goes on in template1.
func TestDatabaseOfTheAgent(t *testing.T) {
	p := newPrimary(t, false)
	p.sql("CREATE ROLE owner; ALTER DATABASE postgres OWNER TO owner")
	conn := agentsIn(t, p, "template1")
	defer session.Close(conn)
	if _, err := conn.Exec(t.Context(), "SET ROLE owner; ALTER DATABASE postgres ALLOW_CONNECTIONS false"); err != nil {
		t.Fatal(err)
	}
	if err := p.Answer(t.Context()); err != nil {
		t.Errorf("the server is taken for ill: %v", err)
	}
	if faults, err := p.Databases(t.Context(), nil); err != nil || len(faults) > 0 {
		t.Errorf("faults of the databases %v, %v", faults, err)
	}
}

// TestLockedDatabase has the owner of a database lock it, so that a login there waits. The fault of another database is
// found all the same, also beside many databases that are newer.
func TestLockedDatabase(t *testing.T) {
	p := newPrimary(t, false)
	made := []string{"CREATE ROLE owner CREATEDB", "CREATE DATABASE locked OWNER owner", "CREATE DATABASE sound"}
	for i := range 32 { // as many as one check looks into, with names before that of the other one
		made = append(made, fmt.Sprintf("CREATE DATABASE many%02d OWNER owner", i))
	}
	for _, sql := range append(made, "CHECKPOINT") { // nothing is to be written into the directory that is removed
		p.sql(sql)
	}
	var oid string
	err := p.server.Fresh(t.Context(), func(c *pgx.Conn) error {
		return c.QueryRow(t.Context(), "SELECT oid::text FROM pg_database WHERE datname = 'sound'").Scan(&oid)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(p.path("base", oid)); err != nil {
		t.Fatal(err)
	}
	found, err := p.Databases(t.Context(), nil)
	if err != nil || len(found) != 1 || found[0].Database != "sound" {
		t.Errorf("without its directory: %v, %v", found, err)
	}
	if err := os.Mkdir(p.path("base", oid), 0o700); err != nil { // as replay makes it again, empty
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = p.server.Fresh(ctx, func(c *pgx.Conn) error {
		if _, err := c.Exec(ctx, "BEGIN; SET ROLE owner; ALTER DATABASE locked RENAME TO away"); err != nil {
			t.Fatal(err)
		}
		faults, err := p.Databases(ctx, nil)
		if len(faults) != 1 || faults[0].Database != "sound" {
			t.Errorf("found %v", faults)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestNameOfTheAgent has a role give its sessions the name of the agent's. They are ended as others are, and seen: only
// a session of the superuser is the agent's.
func TestNameOfTheAgent(t *testing.T) {
	p := newPrimary(t, false)
	p.sql("CREATE ROLE sly LOGIN REPLICATION")
	as := func(user string, more map[string]string) *pgx.Conn {
		t.Helper()
		c, err := p.server.ConnConfig("postgres")
		if err != nil {
			t.Fatal(err)
		}
		c.User = user
		delete(c.RuntimeParams, "session_preload_libraries") // a superuser's to set
		maps.Copy(c.RuntimeParams, more)
		if more["replication"] != "" {
			c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			delete(c.RuntimeParams, "search_path")
		}
		conn, err := pgx.ConnectConfig(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { session.Close(conn) })
		return conn
	}
	begin := func(c *pgx.Conn) {
		t.Helper()
		if _, err := c.Exec(t.Context(), "BEGIN; SELECT 1"); err != nil {
			t.Fatal(err)
		}
	}
	writer, own := as("sly", nil), as(p.server.Superuser, nil)
	begin(writer)
	begin(own)
	if err := p.EndWriters(t.Context()); err != nil {
		t.Fatal(err)
	}
	if writer.Ping(t.Context()) == nil || own.Ping(t.Context()) != nil {
		t.Error("the session of the role goes on, or the agent's was ended")
	}

	stream := as("sly", map[string]string{"replication": "true"})
	go func() { // ends with the connection
		_, _ = stream.PgConn().Exec(context.WithoutCancel(t.Context()), "START_REPLICATION PHYSICAL 0/1000000").ReadAll()
	}()
	p.waitFor("the stream to be seen", func(ctx context.Context) error {
		if o := p.observe(); !slices.ContainsFunc(o.Replication, func(w Walsender) bool { return w.User == "sly" }) {
			return errors.New("it is not")
		}
		named, err := p.Walsenders(ctx)
		if err == nil && len(named) == 0 {
			err = errors.New("it is not, by its name")
		}
		return err
	})
}

// TestQueueBeforeTheAgentsDatabase has the owner of the database postgres try to drop it, again and again, which locks
// it for 5 s each. The agent is answered meanwhile: a server that did not answer it would be failed over.
func TestQueueBeforeTheAgentsDatabase(t *testing.T) {
	p := newPrimary(t, false)
	defer queueBefore(t, p, "template1")()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := p.Answer(ctx); err != nil {
		t.Errorf("the server is taken for ill: %v", err)
	}
	if err := p.Commit(ctx); err != nil {
		t.Errorf("a commit: %v", err)
	}
}

// queueBefore has the owner of the database postgres try to drop it, in sessions of another one, until end.
func queueBefore(t *testing.T, p *server, from string) (end func()) {
	t.Helper()
	p.sql("CREATE ROLE owner; ALTER DATABASE postgres OWNER TO owner")
	stop, cancel := context.WithCancel(t.Context())
	var queue sync.WaitGroup
	for range 4 {
		conn := agentsIn(t, p, from)
		if _, err := conn.Exec(t.Context(), "SET ROLE owner"); err != nil {
			t.Fatal(err)
		}
		queue.Go(func() {
			defer session.Close(conn)
			for stop.Err() == nil {
				_, _ = conn.Exec(stop, "DROP DATABASE postgres") // it is in use
			}
		})
	}
	held := "SELECT count(*) >= 3 FROM pg_locks WHERE locktype = 'object' AND classid = 'pg_database'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted"
	p.waitFor("the queue", func(ctx context.Context) error {
		return p.main.Do(ctx, func(c *pgx.Conn) error {
			var yes bool
			if err := c.QueryRow(ctx, held).Scan(&yes); err != nil || yes {
				return err
			}
			return errors.New("it is not there yet")
		})
	})
	return func() {
		cancel()
		queue.Wait()
	}
}

// TestProbeBesideANewDatabase holds that a commit by which the agent proves a setting, and which waits for secondaries
// that do not confirm it, does not keep anybody from making a database, also where its session is in template1.
func TestProbeBesideANewDatabase(t *testing.T) {
	p := newPrimary(t, false)
	for _, sql := range []string{"CREATE DATABASE sound", "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"} {
		p.sql(sql)
	}
	maker := agentsIn(t, p, "sound")
	defer session.Close(maker)
	defer queueBefore(t, p, "sound")()
	done, pid, err := p.ProbeCommit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.waitFor("the probe to wait", func(ctx context.Context) error {
		if !p.WaitingInSyncRep(ctx, pid) {
			return errors.New("it does not yet")
		}
		return nil
	})
	var in string
	if err := maker.QueryRow(t.Context(), "SELECT datname FROM pg_stat_activity WHERE pid = $1", pid).Scan(&in); err != nil || in != "template1" {
		t.Fatalf("the test is of a probe in template1: %s, %v", in, err)
	}
	if _, err := maker.Exec(t.Context(), "CREATE DATABASE another"); err != nil {
		t.Errorf("beside the probe: %v", err)
	}
	select {
	case err = <-done:
	default:
	}
	if err == nil {
		t.Error("the probe goes on, or its commit is said to be confirmed")
	}
}

// TestProbeInADatabaseThatWarns holds that a warning of the login, as of the collations of another operating system, is
// not taken for a wait that was cut short.
func TestProbeInADatabaseThatWarns(t *testing.T) {
	p := newPrimary(t, false)
	if p.server.Version() < 15 {
		t.Skip("no database has a version of its collation")
	}
	p.sql("UPDATE pg_database SET datcollversion = 'another'")
	done, _, err := p.ProbeCommit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("nobody is waited for: %v", err)
	}
}

// TestLargeSettingsOfARole has a role give itself settings that the server takes long to unpack. They are not read at
// logins, which would all wait, and what they might say counts as said.
func TestLargeSettingsOfARole(t *testing.T) {
	p := newPrimary(t, false)
	p.sql("CREATE ROLE large LOGIN", "CREATE ROLE usual LOGIN", "ALTER ROLE large SET default_transaction_read_only = on", "ALTER ROLE usual SET default_transaction_read_only = on")
	conn := agentsIn(t, p, "template1")
	defer session.Close(conn)
	_, err := conn.Exec(t.Context(), "SET ROLE large; DO $$ BEGIN EXECUTE 'ALTER ROLE large SET search_path = ''' || repeat('x', 16 << 20) || ''''; END $$")
	if err != nil {
		t.Fatal(err)
	}
	for role, large := range map[string]bool{"usual": false, "large": true} {
		if set, err := p.Defaults(t.Context(), role, "postgres"); err != nil || len(set) > 0 == large {
			t.Errorf("defaults of %s: %v, %v", role, set, err)
		}
		if f, err := p.Fingerprint(t.Context(), role, "postgres"); err != nil || f.NotReusable != large || f.Exclusive {
			t.Errorf("fingerprint of %s: %+v, %v", role, f, err)
		}
	}
	if log, err := p.LogSettings(t.Context()); err != nil || len(log.Defaults) != 1 || log.Defaults[0].Of != "role large" || len(log.Defaults[0].Value) > 100 {
		t.Errorf("settings of the log: %.1000v, %v", log, err)
	}
	if _, err := p.Settings(t.Context()); err != nil {
		t.Error(err)
	}
}
