package catalog

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"modernc.org/libc"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// smuggled are texts that are one statement to one lexer and several to another. FILE is a file that they would write.
var smuggled = []string{
	`SELECT E'\'' ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 'line' AS x ; SELECT 'done' AS x -- '`,
	`SELECT current_schemas [ 1 1 ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 'line' AS x ; SELECT 'done' AS x ]`,
	"SELECT 1 ` , ' ` ; PRAGMA query_only = OFF ; ATTACH DATABASE \"FILE\" AS y ; CREATE TABLE y.t AS SELECT 1 AS x ; SELECT 2 -- '",
	`SELECT 1 = ANY (SELECT [ ' ] ) ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 1 AS x ; SELECT 2 -- ' ] )`,
	`SELECT 1 = ANY (ARRAY[ [ ' ] ) ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 1 AS x -- ' ] ])`,
	`SELECT #a(.') ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 1 AS x -- ')`,
	`SELECT a#b(.') ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 1 AS x -- ')`,
	`SELECT 1E'\'' ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 1 AS x -- '`,
	`SELECT 1 ; PRAGMA query_only = OFF ; ATTACH DATABASE "FILE" AS y ; CREATE TABLE y.t AS SELECT 1 AS x`,
	`SELECT E'\'' ; PRAGMA query_only = OFF ; CREATE TEMP TABLE replicas AS SELECT 'n1' AS name, 'FAKE' AS health ; SELECT 1 -- '`,
	`SELECT E'\'' ; PRAGMA query_only = OFF ; DROP TABLE coterie.replicas ; SELECT 1 -- '`,
}

// TestOneStatement holds that no text gives the engine a second statement, by the simple path nor by the extended one.
func TestOneStatement(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pwned.db")
	f := demo()
	c := open(t, &f)
	want := ask(t, c, "select name from coterie.replicas order by 1")
	for _, s := range smuggled {
		s = strings.ReplaceAll(s, "FILE", file)
		var known *Error
		if _, _, err := query(t.Context(), c, s); !errors.As(err, &known) {
			t.Errorf("%s: %v", s, err)
		}
		if _, _, err := c.Describe(t.Context(), "me", s, nil); !errors.As(err, &known) {
			t.Errorf("describe %s: %v", s, err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("%s: wrote a file", s)
		}
		for range engines { // each engine of the pool
			if got := ask(t, c, "select name from replicas order by 1"); got != want {
				t.Errorf("after %s: replicas are %s", s, got)
			}
		}
	}
}

// bare runs a text in the engine without the translation and the look at its statements.
func bare(e *engine, text string) error {
	return e.conn.Raw(func(c any) error {
		return (&answer{to: &kept{}, most: maxRows}).read(c.(driver.QueryerContext), text, nil)
	})
}

// TestEngineReadsOnly holds that the engine refuses everything but reading the views, whatever text it gets.
func TestEngineReadsOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pwned.db")
	f := demo()
	c := open(t, &f)
	e, err := c.newEngine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"ATTACH 'FILE' AS y", "DETACH sys", "VACUUM INTO 'FILE'", "VACUUM", "PRAGMA query_only = OFF", "PRAGMA query_only", "PRAGMA hard_heap_limit = 0",
		"BEGIN", "SAVEPOINT a", "COMMIT", "ANALYZE", "CREATE TABLE x(a)", "CREATE TEMP TABLE replicas(a)", "CREATE TEMP VIEW replicas AS SELECT 1",
		"CREATE INDEX coterie.i ON replicas(name)", "CREATE VIRTUAL TABLE temp.x USING fts5(a)", "DROP TABLE coterie.replicas", "ALTER TABLE coterie.replicas RENAME TO x",
		"DELETE FROM coterie.replicas", "UPDATE coterie.replicas SET name = 'x'", "INSERT INTO coterie.replicas(name) VALUES ('x')",
		"WITH x AS (SELECT 1) DELETE FROM coterie.replicas", "INSERT INTO coterie.replicas(name) VALUES ('x') RETURNING name",
		"SELECT load_extension('x')", "SELECT writefile('FILE', 'x')", "SELECT readfile('/etc/passwd')", "SELECT fts5(x'00')", "SELECT sqlite_log(1, 'x')", "SELECT coterie_pump()",
		"SELECT * FROM pragma_database_list", "SELECT * FROM pragma_query_only(0)", "SELECT sql FROM sys.sqlite_master", "SELECT * FROM sqlite_temp_schema",
		"SELECT 1; ATTACH 'FILE' AS y", "SELECT 1; DROP TABLE coterie.replicas", "EXPLAIN ATTACH 'FILE' AS y",
	} {
		if err := bare(e, strings.ReplaceAll(s, "FILE", file)); err == nil {
			t.Errorf("%s: was executed", s)
		}
		if _, err := os.Stat(file); err == nil {
			t.Fatalf("%s: wrote a file", s)
		}
	}
	if !e.denied {
		t.Error("the engine is to be used again")
	}
	e.trusted = true
	if err := bare(e, "ATTACH ':memory:' AS y"); err == nil {
		t.Error("a further database was attached")
	}
	if err := bare(e, "SELECT count(*), max(name) FROM coterie.replicas"); err != nil {
		t.Error(err)
	}
}

// TestLimits holds that a query ends within its limits of rows, bytes, nesting and time, also between two rows.
func TestLimits(t *testing.T) {
	f := demo()
	c := open(t, &f)
	long := "SELECT " + strings.Repeat("CAST(", 8000) + "1" + strings.Repeat(" AS int)", 8000)
	for text, want := range map[string]string{
		"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x FROM c WHERE x = 1":                                   "57014",
		"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(*) FROM c":                                        "57014",
		"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x < 2000) SELECT hex(zeroblob(30000)) FROM c":             "54000",
		"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x FROM c":                                               "54000",
		"WITH RECURSIVE c(x, y) AS (SELECT 1, '' UNION ALL SELECT x+1, hex(zeroblob(30000)) FROM c) SELECT x, y FROM c ORDER BY y, x": "54000",
		"SELECT hex(zeroblob(40000))": "54000",
		long:                          "54001",
		"SELECT 1" + strings.Repeat("::int", 8000): "54001",
		"SELECT " + strings.Repeat("(", 200) + "1": "54001",
	} {
		limit := queryLimit
		if want == "57014" { // nothing but the caller's time ends it
			limit = time.Second
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		start := time.Now()
		_, _, err := query(ctx, c, text)
		cancel()
		var known *Error
		if !errors.As(err, &known) || known.State != want {
			t.Errorf("%.100s: %v, want %s", text, err, want)
		}
		if took := time.Since(start); took > limit+20*time.Second {
			t.Errorf("%.100s took %v", text, took)
		}
	}
	if got := ask(t, c, "select count(*) from coterie.replicas"); got != "4" {
		t.Error(got)
	}
}

// greedy are queries that keep more rows at once than there is memory for.
var greedy = []string{
	"WITH RECURSIVE c(x, y) AS (SELECT 1, '' UNION ALL SELECT x+1, hex(zeroblob(30000)) FROM c) SELECT x, y FROM c ORDER BY y, x",
	"WITH RECURSIVE c(x, y) AS (SELECT 1, '' UNION SELECT x+1, x || hex(zeroblob(30000)) FROM c) SELECT count(*) FROM c",
	"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x || hex(zeroblob(20000)), count(*) FROM c GROUP BY 1",
	"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT count(DISTINCT x || hex(zeroblob(20000))) FROM c",
	"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x, max(hex(zeroblob(30000))) OVER (ORDER BY x DESC) FROM c",
	"WITH RECURSIVE c(x, y) AS MATERIALIZED (SELECT 1, '' UNION ALL SELECT x+1, hex(zeroblob(30000)) FROM c) SELECT a.x FROM c a JOIN c b ON a.y = b.y AND a.x < 0",
	"WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT x FROM c ORDER BY -x",
}

// TestMemoryIsBounded holds that queries which sort, group and join without end are refused when the engines have used
// their memory, and that the memory is free again afterwards. SQLite itself counts.
func TestMemoryIsBounded(t *testing.T) {
	f := demo()
	c := open(t, &f)
	ask(t, c, "select 1")
	tls := libc.NewTLS()
	defer tls.Close()
	var all sync.WaitGroup
	sqlite3.Xsqlite3_memory_highwater(tls, 1)
	for i, text := range greedy {
		all.Go(func() {
			err := c.Query(t.Context(), Question{User: fmt.Sprint("user ", i), Text: text, Args: nil}, &kept{})
			var known *Error
			if !errors.As(err, &known) || known.State != "54000" && known.State != "57014" && known.State != "53300" {
				t.Errorf("%s: %v", text, err)
			}
		})
	}
	all.Wait()
	if most := sqlite3.Xsqlite3_memory_highwater(tls, 0); most > maxHeap || most < maxHeap/2 {
		t.Errorf("the engines had %d bytes, want at most %d and at least half of that", most, maxHeap)
	}
	if now := sqlite3.Xsqlite3_memory_used(tls); now > maxHeap/8 {
		t.Errorf("%d bytes are used after the queries", now)
	}
	if got := ask(t, c, "select count(*) from coterie.replicas"); got != "4" {
		t.Error(got)
	}
}

// TestTimeEndsBeforeThereIsAnEngine holds that a query whose time ends while its engine is made says so.
func TestTimeEndsBeforeThereIsAnEngine(t *testing.T) {
	f := demo()
	for range 20 {
		ctx, end := context.WithCancel(t.Context())
		c := New(func(context.Context) Facts { end(); return f })
		_, _, err := query(ctx, c, "select 1")
		var known *Error
		if !errors.As(err, &known) || known.State != "57014" && known.State != "53300" {
			t.Errorf("%v", err)
		}
		c.Close()
	}
}

// TestOneUserLeavesAnEngine holds that the queries of one user never occupy all engines, however slowly it reads.
func TestOneUserLeavesAnEngine(t *testing.T) {
	f := demo()
	c := open(t, &f)
	stuck := &stuckRows{entered: make(chan struct{}, 2*engines), free: make(chan struct{})}
	var all sync.WaitGroup
	for range 2 * engines {
		all.Go(func() {
			if err := c.Query(t.Context(), Question{User: "slow", Text: "select 1", Args: nil}, stuck); err != nil {
				t.Error(err)
			}
		})
	}
	for range perUser {
		<-stuck.entered
	}
	for range 2 * engines {
		if got := ask(t, c, "select count(*) from coterie.replicas"); got != "4" {
			t.Error(got)
		}
	}
	if n := len(stuck.entered); n > 0 {
		t.Errorf("%d queries of one user were under way", perUser+n)
	}
	close(stuck.free)
	all.Wait()
	if len(c.running) > 0 {
		t.Errorf("%v are under way", c.running)
	}
}

// stuckRows takes rows when it is free.
type stuckRows struct {
	entered, free chan struct{}
}

func (s *stuckRows) Columns([]Column) error {
	s.entered <- struct{}{}
	<-s.free
	return nil
}

func (s *stuckRows) Row([]any) error { return nil }
func (s *stuckRows) Notice(string)   {}

// TestRowsAreSentAsTheyCome holds that rows are sent before the query has ended, with the type of the first value that
// is not NULL, and that an error of the receiver ends the query and is returned.
func TestRowsAreSentAsTheyCome(t *testing.T) {
	f := demo()
	c := open(t, &f)
	lost := errors.New("lost")
	endless := "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT nullif(x, 1) AS y, NULL AS z FROM c"
	r := &failingRows{after: 2000, err: lost}
	if err := c.Query(t.Context(), Question{User: "me", Text: endless, Args: nil}, r); !errors.Is(err, lost) || len(r.rows) != 2000 {
		t.Errorf("%d rows, %v", len(r.rows), err)
	}
	if r.columns[0].Type != typeInt8.oid || r.columns[1].Type != typeText.oid || r.rows[0][0] != nil || r.rows[1][0] != int64(2) {
		t.Errorf("columns %v, rows %v", r.columns, r.rows[:2])
	}
	if got := ask(t, c, "select nullif(1, 1) AS y"); got != "<nil>" {
		t.Error(got)
	}
	if columns, _, err := query(t.Context(), c, "select name from coterie.replicas where 1 = 0"); err != nil || len(columns) != 1 {
		t.Errorf("an answer without rows: %v, %v", columns, err)
	}
}

// failingRows returns an error when it has taken so many rows.
type failingRows struct {
	kept
	after int
	err   error
}

func (f *failingRows) Row(values []any) error {
	if len(f.rows) == f.after {
		return f.err
	}
	return f.kept.Row(values)
}

// FuzzOneStatement holds the lexer of Split, that of scan and that of the engine against each other: a part of a text
// that is handed to the engine is one statement there.
func FuzzOneStatement(f *testing.F) {
	for _, s := range smuggled {
		f.Add(s)
	}
	f.Add(`select [a b], "c""d", N'x', E'\\', 1e5, a.[b]::int, $1 from sys.databases where x = any('{1,2}') /* ; */ -- ;`)
	scripts, err := os.ReadFile("testdata/scripts.sql")
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range strings.Split(string(scripts), "\n-- name: ") {
		f.Add("-- " + s)
	}
	for _, x := range tsql {
		f.Add("SELECT " + x.expression + " FROM (SELECT GETDATE() AS t) AS x")
	}
	for _, s := range append(strings.Split(agreed, "\n"), agreedQueries...) {
		f.Add("SELECT " + strings.ReplaceAll(s, "{t}", "sys.databases"))
	}
	facts := demo()
	c := New(func(context.Context) Facts { return facts })
	f.Cleanup(c.Close)
	e, err := c.newEngine(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	asked := 0
	err = e.conn.Raw(func(c any) error {
		return c.(sqlite.AuthorizerRegisterer).RegisterAuthorizer(func(a sqlite.AuthorizerActionCode, x, y, db, _ string) sqlite.AuthorizerReturnCode {
			asked++
			return e.authorize(a, x, y, db)
		})
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := ddl.Split(text)
		if err != nil {
			return
		}
		for _, p := range parts {
			translated, err := translate(t.Context(), p.Text, nil)
			if err != nil {
				continue
			}
			sent, n := translated.SQL, len(translated.Params)
			// The driver compiles a single statement once, and the first of several twice.
			err = e.conn.Raw(func(c any) error {
				asked = 0
				if _, err := c.(interface {
					ColumnInfo(string) ([]sqlite.ColumnInfo, error)
				}).ColumnInfo(sent); err != nil {
					return nil
				}
				once := asked
				asked = 0
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				args := make([]driver.NamedValue, n)
				for i := range args {
					args[i].Ordinal = i + 1
				}
				if rows, err := c.(driver.QueryerContext).QueryContext(ctx, sent, args); err == nil {
					_ = rows.Close()
				}
				if asked > once {
					t.Fatalf("%q: the engine got %q, which is more than one statement", p.Text, sent)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
