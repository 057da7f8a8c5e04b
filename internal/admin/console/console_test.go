package console

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
)

// world is a Backend with the real views, and a configuration that statements change.
type world struct {
	views  *catalog.Catalog
	group  ag.Group
	ran    []string
	denied []string
}

func newWorld(t *testing.T) *world {
	w := &world{group: ag.Group{ID: "0d9c6d8e-7e47-4b8a-8a4e-0123456789ab", Name: "shop", SessionTimeout: 10 * time.Second, Replicas: []ag.Replica{
		{ID: "a", AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Endpoint: "a:1"},
		{ID: "b", AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Endpoint: "b:1"},
	}}}
	w.views = catalog.New(func(context.Context) catalog.Facts {
		return catalog.Facts{
			Now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), Self: "a", Primary: "a", WriteOpen: true, Quorum: true, Version: "15.18", Group: w.group,
			Record: ag.Record{Epoch: ag.EpochRecord{Epoch: 3, Phase: ag.PhaseLead, Leader: "a"}},
			Nodes:  map[ag.ReplicaID]catalog.Node{"a": {Connected: true, Role: ag.RolePrimary, Databases: []catalog.Database{{OID: 5, Name: "postgres"}}}},
		}
	})
	t.Cleanup(w.views.Close)
	return w
}

func (w *world) Version() string { return "15.18" }

func (w *world) Describe(ctx context.Context, who Principal, sql string, given []Type) ([]Column, []Type, error) {
	oids := make([]uint32, len(given))
	for i, g := range given {
		oids[i] = uint32(g)
	}
	cols, params, err := w.views.Describe(ctx, who.User, sql, oids)
	types := make([]Type, len(params))
	for i, p := range params {
		types[i] = Type(p)
	}
	return columns(cols), types, viewError(err)
}

func (w *world) Query(ctx context.Context, who Principal, q Question, to Rows) error {
	return viewError(w.views.Query(ctx, catalog.Question{User: who.User, Text: q.SQL, Args: q.Args, Variables: q.Variables}, fromViews{to}))
}

// fromViews sends the rows of the views to a session.
type fromViews struct{ Rows }

func (f fromViews) Columns(list []catalog.Column) error { return f.Rows.Columns(columns(list)) }

func columns(list []catalog.Column) []Column {
	out := make([]Column, len(list))
	for i, c := range list {
		out[i] = Column{c.Name, Type(c.Type)}
	}
	return out
}

func viewError(err error) error {
	var known *catalog.Error
	if errors.As(err, &known) {
		return Errorf(known.State, "%s", known.Message).WithHint(known.Hint)
	}
	return err
}

func (w *world) Denied(who Principal, s ddl.Statement, err *Error) {
	w.denied = append(w.denied, who.User+": "+s.String()+": "+err.State)
}

func (w *world) Execute(_ context.Context, _ Principal, s ddl.Statement) (Result, error) {
	if s.Kind() == ddl.KindReport {
		return Result{Columns: Columns(s), Rows: [][]any{}, Tag: "SELECT"}, nil
	}
	next, notices, err := s.Change(w.group, ddl.Context{Self: "a", Primary: "a"})
	if err != nil {
		return Result{}, err
	}
	w.group = next
	w.ran = append(w.ran, s.String())
	r := Result{Tag: s.Verb()}
	for _, n := range notices {
		r.Notices = append(r.Notices, Notice{"NOTICE", n.Message})
	}
	return r, nil
}

// serve opens a port that accepts every client as that principal, and returns its address.
func serve(t *testing.T, b Backend, who Principal) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				be := pgproto3.NewBackend(conn, conn)
				for {
					m, err := be.ReceiveStartupMessage()
					if err != nil {
						return
					}
					if _, ok := m.(*pgproto3.StartupMessage); ok {
						break
					}
					_, _ = conn.Write([]byte{'N'})
				}
				be.Send(&pgproto3.AuthenticationOk{})
				_ = be.Flush()
				_ = Serve(ctx, conn, b, Hello{Who: who, Settings: map[string]string{"application_name": "test"}, Logger: slog.New(slog.DiscardHandler)})
			}()
		}
	}()
	t.Cleanup(func() { cancel(); _ = l.Close(); <-done })
	return l.Addr().String()
}

func dsn(addr string) string {
	host, port, _ := net.SplitHostPort(addr)
	return "host=" + host + " port=" + port + " user=me dbname=coterie sslmode=disable"
}

func TestPgx(t *testing.T) {
	w := newWorld(t)
	addr := serve(t, w, Principal{User: "me", May: ddl.MayAdminister})
	conn, err := pgx.Connect(t.Context(), dsn(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var id, name string
	var local bool
	var timeout int32
	var at time.Time
	var n int64
	err = conn.QueryRow(t.Context(), `SELECT replica_id, replica_server_name, is_local, session_timeout, now(), count(*) over ()
		FROM sys.availability_replicas JOIN sys.dm_hadr_availability_replica_states USING (replica_id) WHERE replica_server_name = $1 AND session_timeout > $2`, "a", 3).
		Scan(&id, &name, &local, &timeout, &at, &n)
	if err != nil || name != "a" || !local || timeout != 10 || n != 1 || at.Year() != 2026 || len(id) != 36 {
		t.Errorf("got %s %s %v %d %v %d, %v", id, name, local, timeout, at, n, err)
	}
	rows, err := conn.Query(t.Context(), "SELECT * FROM sys.dm_hadr_database_replica_states") // binary results of every type
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		if _, err := rows.Values(); err != nil {
			t.Error(err)
		}
	}
	if rows.Err() != nil {
		t.Error(rows.Err())
	}
	tag, err := conn.Exec(t.Context(), "ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'a' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ('b')))")
	if err != nil || tag.String() != "ALTER AVAILABILITY GROUP" || len(w.ran) != 1 {
		t.Errorf("%v, %v; ran %q", tag, err, w.ran)
	}
	var pgErr *pgconn.PgError
	_, err = conn.Exec(t.Context(), "ALTER AVAILABILITY GROUP shop MODIFY REPLICA ON 'z' WITH (BACKUP_PRIORITY = 1)")
	if !errors.As(err, &pgErr) || pgErr.Code != "42704" || !strings.HasPrefix(pgErr.Message, "Msg 41167") || pgErr.Hint == "" || pgErr.Position != 49 {
		t.Errorf("got %+v", err)
	}
	if err := conn.QueryRow(t.Context(), "SELECT nosuch").Scan(&n); !errors.As(err, &pgErr) || pgErr.Code != "42703" {
		t.Errorf("got %v", err)
	}
	if err := conn.Ping(t.Context()); err != nil { // the session continues
		t.Error(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT nosuch"); err == nil {
		t.Error("no error")
	}
	if _, err := tx.Exec(t.Context(), "SELECT 1"); !errors.As(err, &pgErr) || pgErr.Code != "25P02" {
		t.Errorf("in a failed transaction: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestPrivileges(t *testing.T) {
	for _, tt := range []struct {
		may  ddl.Privilege
		text string
		want string
	}{
		{ddl.MayLook, "SELECT 1", ""},
		{ddl.MayLook, "EXPLAIN FAILOVER", ""},
		{ddl.MayLook, "RESUME REPLICA 'b'", "permission denied: RESUME needs the role coterie_operator"},
		{ddl.MayOperate, "RESUME REPLICA 'b'", ""},
		{ddl.MayOperate, "DROP AVAILABILITY GROUP shop", "permission denied: DROP AVAILABILITY GROUP needs the role coterie_admin"},
		{ddl.MayAdminister, "DROP AVAILABILITY GROUP shop", ""},
	} {
		_, err := NewSession(newWorld(t), Principal{User: "me", May: tt.may}).Run(t.Context(), tt.text)
		if (err == nil) != (tt.want == "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%d: %s: %v, want %s", tt.may, tt.text, err, tt.want)
		}
	}
	if _, err := pgx.Connect(t.Context(), dsn(serve(t, newWorld(t), Principal{User: "me", May: ddl.MayNothing}))); err == nil || !strings.Contains(err.Error(), "may not use the console") {
		t.Errorf("a role without a privilege: %v", err)
	}
	for _, tt := range []struct {
		super bool
		user  string
		roles []string
		want  ddl.Privilege
	}{{true, "x", nil, ddl.MayConfigureServers}, {false, "coterie_viewer", nil, 1}, {false, "x", []string{"coterie_viewer", "coterie_operator"}, 2}, {false, "x", []string{"coterie_admin"}, 3}, {false, "x", nil, 0}} {
		if got := PrivilegeOf(tt.super, tt.user, tt.roles); got != tt.want {
			t.Errorf("%+v: got %d", tt, got)
		}
	}
}

// slow is a Backend whose statements run until they are cancelled.
type slow struct{ *world }

func (s slow) Query(ctx context.Context, _ Principal, q Question, to Rows) error {
	if !strings.Contains(q.SQL, "forever") {
		return errors.Join(to.Columns([]Column{{"one", 23}}), to.Row([]any{int64(1)}))
	}
	<-ctx.Done()
	return ctx.Err()
}

func TestCancel(t *testing.T) {
	ask := make(chan struct{}, 1)
	s := NewSession(slow{newWorld(t)}, Principal{User: "me", May: ddl.MayAdminister})
	s.interrupt = ask
	ask <- struct{}{} // nothing runs: it is ignored
	if _, err := s.Run(t.Context(), "SELECT 1"); err != nil {
		t.Error(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { ask <- struct{}{} })
	_, err := s.Run(t.Context(), "SELECT forever")
	var known *Error
	if !errors.As(err, &known) || known.State != "57014" || known.Message != "canceling statement due to user request" {
		t.Errorf("got %v", err)
	}
	if _, err := s.Run(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the session does not go on: %v", err)
	}
}

// sessions lists the statements that clients send at their start, in order and on one session, with the answers: the
// tag, the SQLSTATE of an error, or the first value.
var sessions = map[string][][2]string{
	"pgjdbc": {
		{"SET extra_float_digits = 3", "SET"},
		{"SET application_name = 'PostgreSQL JDBC Driver'", "SET"},
		{"SHOW TRANSACTION ISOLATION LEVEL", "read committed"},
		{"BEGIN", "BEGIN"},
		{"SELECT nspname AS TABLE_SCHEM, NULL AS TABLE_CATALOG FROM pg_catalog.pg_namespace WHERE nspname <> 'pg_toast' AND (nspname !~ '^pg_temp_' OR nspname = (pg_catalog.current_schemas(true))[1]) ORDER BY TABLE_SCHEM", "coterie"},
		{"ROLLBACK", "ROLLBACK"},
		{"SELECT current_database()", "coterie"},
		{"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SET"},
	},
	"psycopg and SQLAlchemy": {
		{"BEGIN", "BEGIN"},
		{"select pg_catalog.version()", "PostgreSQL 15.18 (the console of an availability group)"},
		{"select current_schema()", "sys"},
		{"show standard_conforming_strings", "on"},
		{"ROLLBACK", "ROLLBACK"},
	},
	"Grafana": {
		{"SELECT current_setting('server_version_num')::int/100 as version", "1500"},
		{"SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'", ""},
		{"SELECT quote_ident(table_name) FROM information_schema.tables WHERE quote_ident(table_schema) = 'sys' ORDER BY 1 LIMIT 1", "availability_databases_cluster"},
		{"SELECT floor(extract(epoch from now())/300)::bigint*300 AS time, count(*) FROM coterie.replicas GROUP BY time", "1795262400"},
	},
	"DBeaver": {
		{"SET extra_float_digits = 3", "SET"},
		{"SELECT session_user", "me"},
		{"SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datallowconn AND NOT datistemplate OR db.datname ='coterie' ORDER BY db.datname", "1"},
		{"SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid=n.oid AND d.objsubid=0 AND d.classoid='pg_namespace'::regclass ORDER BY nspname", "2201"},
		{"SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,dsc.description,dep.objid FROM pg_catalog.pg_attribute a INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid) LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum) LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid) LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i' and dep.refobjsubid = a.attnum and dep.classid = dep.refclassid WHERE NOT a.attisdropped AND c.relname = 'availability_groups' ORDER BY a.attnum LIMIT 1", "availability_groups"},
		{"select string_agg(word, ',') from pg_catalog.pg_get_keywords() where word <> ALL ('{a,abs}'::text[])", "42P01"}, // the client continues without it
		{"SELECT oid, typname FROM pg_catalog.pg_type ORDER BY oid LIMIT 1", "16"},
		{"SHOW search_path", "sys, coterie"},
	},
	"a tutorial": {
		{"CREATE ENDPOINT [Hadr_endpoint] AS TCP (LISTENER_PORT = 5022) FOR DATABASE_MIRRORING (ROLE = ALL)", "CREATE ENDPOINT"},
		{"CREATE LOGIN dbm_login WITH PASSWORD = 'x'", "CREATE LOGIN"},
		{"BACKUP CERTIFICATE c TO FILE = '/tmp/c.cer'", "BACKUP CERTIFICATE"},
	},
	"others": {
		{"SET NAMES 'utf8'", "SET"},
		{"SET TIME ZONE 'UTC'", "SET"},
		{"SET client_encoding TO 'LATIN1'", "22023"},
		{"DISCARD ALL", "DISCARD"},
		{"DEALLOCATE ALL", "DEALLOCATE"},
		{"SET SESSION my.own = 'x''y'", "SET"},
		{"SHOW my.own", "x'y"},
		{"RESET ALL", "RESET"},
		{"SHOW my.own", "42704"},
		{"SET", "42601"},
		{"COPY x FROM stdin", "0A000"},
		{"INSERT INTO x VALUES (1)", "0A000"},
		{"CREATE TABLE x (i int)", "0A000"},
		{"COMMIT", "COMMIT"},
		{"-- nothing\nselect 1", "1"},
		{"use master", "USE"},
	},
}

func TestSessions(t *testing.T) {
	for name, list := range sessions {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		for _, x := range list {
			r, err := s.Run(t.Context(), x[0])
			got := r.Tag
			var known *Error
			switch {
			case errors.As(err, &known):
				got = known.State
			case r.Columns != nil && len(r.Rows) == 0:
				got = ""
			case r.Columns != nil:
				got = string(encodeText(r.Rows[0][0], r.Columns[0].Type))
			}
			if got != x[1] {
				t.Errorf("%s: %s: got %q (%v), want %q", name, x[0], got, err, x[1])
			}
		}
	}
}

func TestPsql(t *testing.T) {
	psql, err := exec.LookPath("psql")
	if err != nil {
		t.Skip("no psql here")
	}
	addr := serve(t, newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	for _, tt := range []struct{ command, want string }{
		{`\d sys.dm_hadr_cluster`, "quorum_state_desc | text"},
		{`\dv coterie.*`, "timelines"},
		{`\dv+ coterie.*`, "The history of the data: every promotion"},
		{`\dn`, "coterie"},
		{`\l`, "coterie"},
		{`\dt`, "Did not find any relations."},
		{`\du`, "is not supported in the console"},
		{"select name from sys.availability_groups; script", "shop"},
		{"alter availability group shop frob", "LINE 1: alter availability group shop frob"},
		{"select 1; select nosuch", "no such column: nosuch"},
	} {
		out, _ := exec.CommandContext(t.Context(), psql, "-wX", dsn(addr), "-c", tt.command).CombinedOutput()
		if !strings.Contains(string(out), tt.want) {
			t.Errorf("%s: got\n%s\nwant %s", tt.command, out, tt.want)
		}
	}
}

// FuzzWire sends arbitrary messages of the extended protocol: the session answers or ends, and never panics.
func FuzzWire(f *testing.F) {
	var b []byte
	for _, m := range []pgproto3.FrontendMessage{
		&pgproto3.Parse{Query: "select $1::int"}, &pgproto3.Bind{Parameters: [][]byte{[]byte("1")}}, &pgproto3.Describe{ObjectType: 'P'},
		&pgproto3.Execute{}, &pgproto3.Sync{}, &pgproto3.Query{String: "show x; script"},
	} {
		b, _ = m.Encode(b)
	}
	f.Add(b)
	w := &world{}
	w.views = catalog.New(func(context.Context) catalog.Facts { return catalog.Facts{} })
	f.Cleanup(w.views.Close)
	f.Fuzz(func(t *testing.T, in []byte) {
		client, server := net.Pipe()
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := client.Read(buf); err != nil {
					return
				}
			}
		}()
		go func() { _, _ = client.Write(in); _ = client.Close() }()
		err := Serve(t.Context(), server, w, Hello{Who: Principal{User: "me", May: ddl.MayLook}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil && strings.Contains(err.Error(), "bug") {
			t.Fatal(err)
		}
		_ = server.Close()
	})
}

// TestSmuggledStatements holds that a viewer's query cannot bring further statements into the engine of the views, by
// either protocol.
func TestSmuggledStatements(t *testing.T) {
	w := newWorld(t)
	conn, err := pgx.Connect(t.Context(), dsn(serve(t, w, Principal{User: "monitor", May: ddl.MayLook})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	file := filepath.Join(t.TempDir(), "pwned.db")
	rest := ` ; PRAGMA query_only = OFF ; ATTACH DATABASE "` + file + `" AS y ; CREATE TABLE y.t AS SELECT 'line' AS x ; SELECT 'done' AS x `
	for _, text := range []string{"SELECT E'\\''" + rest + "-- '", "SELECT current_schemas [ 1 1" + rest + "]", "SELECT ` , ' `" + rest + "-- '"} {
		var known *pgconn.PgError
		if _, err := conn.PgConn().Exec(t.Context(), text).ReadAll(); !errors.As(err, &known) {
			t.Errorf("simple protocol: %s: %v", text, err)
		}
		if r := conn.PgConn().ExecParams(t.Context(), text, nil, nil, nil, nil).Read(); !errors.As(r.Err, &known) {
			t.Errorf("extended protocol: %s: %v", text, r.Err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("%s: wrote a file", text)
		}
	}
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM coterie.replicas").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d replicas, %v", n, err)
	}
}

// TestSettingsNeedASuperuser holds that a role which may administer the group cannot have its servers run programs, nor
// change who may log in as what.
func TestSettingsNeedASuperuser(t *testing.T) {
	if PrivilegeOf(true, "any", nil) != ddl.MayConfigureServers || PrivilegeOf(false, "x", []string{"coterie_admin"}) != ddl.MayAdminister {
		t.Error("superusers and coterie_admin have the same privilege")
	}
	for may, want := range map[ddl.Privilege]string{ddl.MayLook: "42501", ddl.MayOperate: "42501", ddl.MayAdminister: "42501", ddl.MayConfigureServers: ""} {
		for _, clause := range []string{"SET PARAMETER archive_command = 'touch /tmp/x'", "SET HBA (N'host all all all trust')", "RESET HBA"} {
			_, err := NewSession(newWorld(t), Principal{User: "me", May: may}).Run(t.Context(), "ALTER AVAILABILITY GROUP shop "+clause)
			var known *Error
			if denied := errors.As(err, &known) && known.State == "42501"; denied != (want != "") {
				t.Errorf("privilege %d, %s: %v", may, clause, err)
			}
		}
	}
}
