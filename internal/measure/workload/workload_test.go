package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/measure/method"
	"github.com/coteriedb/coterie/internal/measure/session"
)

var shared struct {
	once   sync.Once
	server *pgtest.Server
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.server != nil {
		if err := shared.server.Remove(); err != nil && code == 0 {
			code = 1
		}
	}
	os.Exit(code)
}

// database makes an empty database on the server of this package's tests.
func database(t *testing.T, name string) string {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = pgtest.New() })
	if errors.Is(shared.err, pgtest.ErrNoServer) {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	execute(t, shared.server.DSN(), "drop database if exists "+name+" with (force)") // of the same test, run again
	execute(t, shared.server.DSN(), "create database "+name)
	return "postgres://postgres@/" + name + "?host=" + shared.server.Dir()
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func number(t *testing.T, dsn, sql string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func TestQueryInEveryFormat(t *testing.T) {
	dsn := database(t, "formats")
	if n, err := LoadRows(t.Context(), dsn, 12_345, nil); n != 12_345 || err != nil {
		t.Fatal(n, err)
	}
	for _, f := range []Format{Binary, Text, Copy} {
		q := Query{DSN: dsn, SQL: "select id, pad from coterie_bench.rows", Format: f}
		r, err := method.Run(t.Context(), method.Load{Clients: 2, Iterations: 2}, q.Worker)
		if err != nil {
			t.Fatal(err)
		}
		if r.OK != 4 || r.Rows != 4*12_345 || r.Bytes < 4*12_345*192 || r.Servers["only"] != 4 || r.RoutedPct() != 0 {
			t.Errorf("%s: %d answered, %d rows, %d bytes, servers %v, errors %v", f, r.OK, r.Rows, r.Bytes, r.Servers, r.Errors)
		}
	}
	p, err := ParamQuery(t.Context(), dsn, "select id from coterie_bench.rows where id <= 3 order by id")
	if err != nil {
		t.Fatal(err)
	}
	for _, again := range []bool{false, true} {
		q := Query{DSN: dsn, SQL: "select from coterie_bench.rows where id = $1", Params: p, Connect: again}
		if r, err := method.Run(t.Context(), method.Load{Clients: 3, Iterations: 4}, q.Worker); err != nil || r.Rows != 12 {
			t.Errorf("a connection each time %v: %d rows, %v", again, r.Rows, err)
		}
	}
	if _, err := method.Run(t.Context(), method.Load{Iterations: 1}, Query{DSN: dsn, SQL: "select no_such_column"}.Worker); err == nil {
		t.Error("a statement that cannot work is asked for ever")
	}
}

func TestParamFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.csv")
	if err := os.WriteFile(path, []byte("1,a\n2,\"b,c\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := ParamFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p.next()
	if got := p.next(); got[1] != "b,c" {
		t.Errorf("%v", got)
	}
	if got := p.next(); got[0] != "1" {
		t.Errorf("after the end: %v", got)
	}
	if _, err := ParamFile(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file, no error")
	}
}

// TestTry finds what no repetition mends, before any client counts it as a failure each time.
func TestTry(t *testing.T) {
	dsn := database(t, "try")
	one := ParamRows([][]any{{"1"}})
	for sql, wrong := range map[string]string{
		"select $1::int":                    "",
		"select $1::int, $2::text":          "mismatched param and argument count",
		"select $1::date":                   "invalid input syntax for type date",
		"select $1::int from no_such_table": "no_such_table",
	} {
		err := Query{DSN: dsn, SQL: sql, Params: one}.Try(t.Context())
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestStatementAndLogin(t *testing.T) {
	dsn := database(t, "writes")
	execute(t, dsn, "create table t (i int)")
	s := Statement{DSN: dsn, Setup: "set synchronous_commit = local", SQL: "insert into t select generate_series(1, 10)"}
	if r, err := method.Run(t.Context(), method.Load{Clients: 2, Iterations: 5}, s.Worker); err != nil || r.Rows != 100 || number(t, dsn, "select count(*) from t") != 100 {
		t.Errorf("%d rows, %v", r.Rows, err)
	}
	if r, err := method.Run(t.Context(), method.Load{Clients: 2, Iterations: 5}, Login{DSN: dsn}.Worker); err != nil || r.OK != 10 {
		t.Errorf("%d logins, %v", r.OK, err)
	}
}

// TestClientsComeBack: a server that dies under its clients costs errors, and no client.
func TestClientsComeBack(t *testing.T) {
	s, err := pgtest.New()
	if errors.Is(err, pgtest.ErrNoServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	restarted := make(chan error, 1)
	var down time.Duration
	l := method.Load{Clients: 3, Duration: time.Minute, Every: 20 * time.Millisecond, Tick: func(p method.Point) {
		switch {
		case down == 0 && p.OK > 0:
			down = p.At
			go func() { restarted <- errors.Join(s.Crash(), s.Start()) }()
		case p.OK > 0 && len(restarted) == 1:
			cancel()
		}
	}}
	r, err := method.Run(ctx, l, Query{DSN: s.DSN(), SQL: "select 1"}.Worker)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	if r.Fail+r.Unknown == 0 || len(r.Errors) == 0 {
		t.Errorf("a dead server cost nothing: %v", r.Errors)
	}
}

// TestLoadGoesOn: an interrupted load makes only what is missing.
func TestLoadGoesOn(t *testing.T) {
	dsn := database(t, "resumed")
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := LoadRows(ctx, dsn, 50_000, func(done, _ int) {
		if done == 20_000 {
			cancel()
		}
	}); err == nil {
		t.Fatal("the load was not interrupted")
	}
	made, err := LoadRows(t.Context(), dsn, 50_000, nil)
	if err != nil || made != 30_000 {
		t.Errorf("made %d, %v", made, err)
	}
	if made, err = LoadRows(t.Context(), dsn, 50_000, nil); err != nil || made != 0 {
		t.Errorf("made %d of what is there, %v", made, err)
	}
	if n := number(t, dsn, "select count(*) from coterie_bench.rows"); n != 50_000 {
		t.Errorf("%d rows", n)
	}
}

func TestOnlyOursIsDropped(t *testing.T) {
	dsn := database(t, "foreign_schema")
	execute(t, dsn, "create schema coterie_bench; create table coterie_bench.precious (i int)")
	if _, err := LoadRows(t.Context(), dsn, 1, nil); !errors.Is(err, ErrNotOurs) {
		t.Errorf("load: %v", err)
	}
	if err := Drop(t.Context(), dsn); !errors.Is(err, ErrNotOurs) {
		t.Errorf("drop: %v", err)
	}
	number(t, dsn, "select count(*) from coterie_bench.precious")
	ours := database(t, "our_schema")
	if _, err := LoadRows(t.Context(), ours, 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Drop(t.Context(), ours), Drop(t.Context(), ours)); err != nil {
		t.Error(err)
	}
	if number(t, ours, "select count(*) from pg_namespace where nspname = 'coterie_bench'") != 0 {
		t.Error("the schema is still there")
	}
}

// looks waits until LooksUsed returns what it should: a client that has just left may still be seen.
func looks(t *testing.T, dsn, want string) {
	t.Helper()
	var why string
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if why, err = LooksUsed(t.Context(), dsn); err == nil && strings.Contains(why, want) && (why == "") == (want == "") {
			return
		}
	}
	t.Errorf("%q, %v, want %q", why, err, want)
}

// TestLooksUsed: clients of any database of the server count, for any user that looks, and tables of this one.
func TestLooksUsed(t *testing.T) {
	dsn := database(t, "used")
	if _, err := LoadRows(t.Context(), dsn, 100, nil); err != nil {
		t.Fatal(err)
	}
	looks(t, dsn, "")
	conn, err := pgx.Connect(t.Context(), dsn+"&application_name=shop")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	looks(t, dsn, "connected to it: 1 (shop of postgres in used)")
	execute(t, dsn, "create role used_stranger login; grant all on schema coterie_bench to used_stranger")
	defer execute(t, dsn, "drop owned by used_stranger; drop role used_stranger")
	looks(t, dsn+"&user=used_stranger", "connected to it: 1 (shop of postgres in used)") // whom the server shows less of others' sessions
	beside := database(t, "beside_used")
	looks(t, beside, "other databases of its server: 1 (shop of postgres in used)")
	second, err := pgx.Connect(t.Context(), beside)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close(context.Background())
	looks(t, beside, "its server: 2 (a client of postgres in beside_used)")
	execute(t, dsn, "create table orders as select generate_series(1, 100)")
	execute(t, dsn, "select pg_stat_reset()") // as after a failover: the counts are gone, the rows are not
	looks(t, dsn, "public.orders")
	if _, err := session.New(session.Options{DSN: dsn}); err != nil {
		t.Error(err)
	}
}
