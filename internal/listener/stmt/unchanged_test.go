package stmt

import (
	"strings"
	"testing"
	"time"
)

func TestKeepsSession(t *testing.T) {
	for _, text := range []string{
		"", ";", "select 1", "SELECT count(*), sum (x) from t where a in (1, 2) and (b or c)", "begin; update t set x = x + 1 where id = $1; commit",
		"INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 2, 3, 4, CURRENT_TIMESTAMP);",
		`insert into "odd name".t (x, y) select lower(x), 1 from u on conflict (x) do update set y = excluded.y returning (y)`,
		"with a as (insert into t values (1) returning x) select * from a", "merge into t using u on (t.x = u.x) when matched then delete",
		"select 'it''s; set x = 1 ('", "/* app='x' */ select -- set x\n 1", "rollback to savepoint s",
		"select x::numeric(10, 2), cast(y as varchar(3))", "select date_trunc('day', now()) at time zone 'UTC'", "select * from t for update of t skip locked",
		"start transaction read only", "table t", "values (1), (2)", "select ü from t",
		"select setting from pg_settings", `update "a" set x = 1`,
		"select $1, 1e5, 1.5", "select 1 /* /* */ */", "select row_number() over (partition by a order by b)", "insert into t values (1)",
		"with a as (select 1) insert into t select * from a", "select 1; insert into t select 1", "with a as (insert into t select 1 returning x) select (select x) from a",
	} {
		if !KeepsSession([]byte(text)) {
			t.Errorf("%q: taken for harmful", text)
		}
	}
	for _, text := range []string{
		"set x = 1", "SET LOCAL x = 1", "set session characteristics as transaction read only", "reset all", "discard all", "listen c", "load 'x'", "prepare p as select 1",
		"execute p", "deallocate p", "do $$ begin end $$", "call p()", "declare c cursor with hold for select 1", "create temp table t (x int)", "copy t from stdin",
		"select f(1)", "select set_config('a.b', '1', false)", "select pg_catalog.set_config('a.b', '1', false)", `select "set_config"('a.b', '1', false)`,
		"select set_config/**/('a.b', '1', false)", "select set_config -- x\n('a.b', '1', false)", `select U&"set\005fconfig"('a.b', '1', false)`, "select s . f (1)",
		"select 1; set x = 1", "select 1;;set x = 1", "/* */set x = 1", "select 1 into t", "select 1 into temp t", "with a as (select 1) select * into t from a",
		"insert into t values (f(1))", "insert into t select f(1)", "insert into t (x) values (1); select f(1)", "select setseed(1)",
		"select pg_advisory_lock(1)", `select 'a\'; set x = 1; --'`, `select e'\''`, "select $a$ x $a$", "select $$x$$", "select '", `select "`, "/* /* */ */ set x = 1",
		"/*", "select 1 --\r; set x = 1", "update t set x = f(1)", "commit; set x = 1", "explain analyze select f(1)", "notify c", "unlisten *", "select dblink_connect('x')",
		"insert into t values (1) returning f(x)", "merge into t using f(1) on true when matched then delete", "select 'x' ';' f(1)", "select 1;\vset x = 1", "insert into t default values returning f(1)",
		"select set_config\v('a.b', '1', false)", "select 1 insert into temp t", `select "x" merge into temp t from u`, "select (1) insert into temp t", "(select (1) as insert into temp t)",
		"update pg_settings set setting = 'off' where name = 'enable_sort'", "Update only pg_catalog . PG_Settings as s set setting = 1", `update "pg_settings" set setting = 1`,
		`update U&"pg\005fsettings" set setting = 1`, `update U&"pg!005fsettings" uescape '!' set setting = 1`, "with a as (update pg_settings set setting = 1 returning 1) select 1 from a",
		"with a as (select 1) select (2) insert into temp t from a", "select 1" + strings.Repeat("(", 64) + " insert into temp t",
	} {
		if KeepsSession([]byte(text)) {
			t.Errorf("%q: taken for harmless", text)
		}
	}
}

// TestKeepsSessionIsFast: a text of a megabyte takes no longer than reading it.
func TestKeepsSessionIsFast(t *testing.T) {
	for _, piece := range []string{"(", "/**/", "''", "a.", "into ", "select ", ";", "/* ", "--\n"} {
		began := time.Now()
		KeepsSession([]byte("select " + strings.Repeat(piece, 1<<20/len(piece))))
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%q took %v", piece, took)
		}
	}
}

// FuzzKeepsSession: a harmless text stays so with a comment or space before it, and is harmful with a statement that is
// so behind it.
func FuzzKeepsSession(f *testing.F) {
	f.Add("select 1")
	f.Add("insert into t (x) values ('a''b')")
	f.Add("select $1 /* x */ -- y")
	f.Fuzz(func(t *testing.T, text string) {
		if !KeepsSession([]byte(text)) || strings.Contains(text, "\x00") {
			return
		}
		if !KeepsSession([]byte("/* x */ \n" + text)) {
			t.Errorf("%q is harmful behind a comment", text)
		}
		if KeepsSession([]byte(text + "\n; set x = 1")) {
			t.Errorf("%q hides what follows", text)
		}
		if KeepsSession([]byte(text + "\n; select set_config('a.b', '1', false)")) {
			t.Errorf("%q hides a call", text)
		}
	})
}

func TestUnchanged(t *testing.T) {
	z := func(parts ...string) string { return strings.Join(parts, "\x00") + "\x00" }
	type m struct {
		typ  byte
		body string
	}
	for name, c := range map[string]struct {
		messages []m
		holds    bool
	}{
		"nothing":                      {nil, true},
		"a query":                      {[]m{{'Q', z("select 1")}}, true},
		"a setting":                    {[]m{{'Q', z("set x = 1")}}, false},
		"a setting, then a query":      {[]m{{'Q', z("set x = 1")}, {'Q', z("select 1")}}, false},
		"a safe statement":             {[]m{{'B', z("", "safe") + "\x00\x00"}, {'E', z("") + "\x00\x00\x00\x00"}, {'S', ""}}, true},
		"a harmful one":                {[]m{{'B', z("", "harmful") + "\x00\x00"}}, false},
		"one that it does not know":    {[]m{{'B', z("", "new") + "\x00\x00"}}, false},
		"the unnamed one of before":    {[]m{{'B', z("", "") + "\x00\x00"}}, false},
		"an unnamed one":               {[]m{{'P', z("", "select $1")}, {'B', z("", "")}, {'D', "P\x00"}, {'E', z("")}, {'S', ""}, {'B', z("p", "")}}, true},
		"a harmful unnamed one":        {[]m{{'P', z("", "set x = 1")}}, false},
		"a named one":                  {[]m{{'P', z("n", "select 1")}}, false},
		"a portal is closed":           {[]m{{'C', z("Pp")}}, true},
		"a statement is closed":        {[]m{{'C', z("Ssafe")}}, false},
		"a function call":              {[]m{{'F', "\x00\x00\x00\x01"}}, false},
		"rows of COPY":                 {[]m{{'d', "x"}}, false},
		"ends":                         {[]m{{'X', ""}}, true},
		"a text of another encoding":   {[]m{{'Q', z("select '\xe4'")}}, true},
		"a harmful text after the end": {[]m{{'Q', z("select 1", "set x = 1")}}, true},
	} {
		var u Unchanged
		if u.Message('Q', []byte("select 1\x00"), true, true); u.Holds() {
			t.Error("it holds before it was asked")
		}
		u.Asked()
		u.Known(map[string]string{"safe": "select 1", "harmful": "set x = 1"}, true)
		for _, m := range c.messages {
			u.Message(m.typ, []byte(m.body), true, true)
		}
		if u.Holds() != c.holds {
			t.Errorf("%s: holds %t", name, u.Holds())
		}
	}
}

// TestUnchangedInPieces: a text that arrives in pieces is judged as a whole one, and nothing holds before it is whole.
func TestUnchangedInPieces(t *testing.T) {
	long := "select 1 /* " + strings.Repeat("x", maxText) + " */"
	for _, m := range []struct {
		typ   byte
		body  string
		holds bool
	}{
		{'Q', "select 1\x00", true},
		{'Q', "set x = 1\x00", false},
		{'P', "\x00select 1\x00\x00\x00", true},
		{'P', "\x00set x = 1\x00\x00\x00", false},
		{'P', "named\x00select 1\x00\x00\x00", false},
		{'Q', long[len(long)-maxText+3:] + "\x00", false}, // its beginning is no comment
		{'Q', "select 1 /* " + strings.Repeat("x", maxText/2) + " */\x00", true},
		{'Q', long + "\x00", false},
		{'P', "\x00" + long + "\x00\x00\x00", false},
	} {
		for _, cut := range []int{0, 1, 2, len(m.body) / 2, len(m.body) - 1} {
			for _, again := range []int{cut, len(m.body) - 1} {
				var u Unchanged
				u.Asked()
				u.Known(nil, true)
				u.Message(m.typ, []byte(m.body[:cut]), true, false)
				u.Message(m.typ, []byte(m.body[cut:again]), false, false)
				if u.Holds() {
					t.Errorf("%c %.20q, cut at %d: holds before its end", m.typ, m.body, cut)
				}
				u.Message(m.typ, []byte(m.body[again:]), false, true)
				if u.Holds() != m.holds {
					t.Errorf("%c %.20q, cut at %d and %d: holds %t", m.typ, m.body, cut, again, u.Holds())
				}
				if cap(u.part) > keptText {
					t.Errorf("%c %.20q: %d bytes are kept", m.typ, m.body, cap(u.part))
				}
				u.Asked() // the statement is executed after it was read
				u.Known(nil, true)
				u.Message('B', []byte("\x00\x00\x00\x00"), true, true)
				if m.typ == 'P' && u.Holds() != m.holds && m.body[0] == 0 {
					t.Errorf("%c %.20q, cut at %d: its execution holds: %t", m.typ, m.body, cut, u.Holds())
				}
			}
		}
	}
}

// TestUnchangedByOldStatements: an unnamed statement that was parsed before the state was read is executed after it.
func TestUnchangedByOldStatements(t *testing.T) {
	for text, holds := range map[string]bool{"select 1": true, "select f(1)": false} {
		var u Unchanged
		u.Message('P', []byte("\x00"+text+"\x00\x00\x00"), true, true)
		u.Asked()
		u.Known(nil, true)
		u.Message('B', []byte("\x00\x00\x00\x00"), true, true)
		if u.Holds() != holds {
			t.Errorf("%q: holds %t", text, u.Holds())
		}
	}
}

// TestUnchangedWhileItIsAsked: prepared statements that are executed before the answer arrives are judged by it.
func TestUnchangedWhileItIsAsked(t *testing.T) {
	for name, holds := range map[string]bool{"safe": true, "harmful": false, "new": false} {
		var u Unchanged
		u.Asked()
		u.Known(map[string]string{name: "select 1"}, true)
		u.Asked()
		u.Message('B', []byte("\x00"+name+"\x00\x00\x00"), true, true)
		if !u.Holds() {
			t.Errorf("%s: it does not hold before the answer", name)
		}
		if u.Known(map[string]string{"safe": "select 1", "harmful": "set x = 1"}, true); u.Holds() != holds {
			t.Errorf("%s: holds %t", name, u.Holds())
		}
	}
	var u Unchanged
	u.Asked()
	names := map[string]string{}
	for i := range maxBound + 1 {
		n := strings.Repeat("x", i+1)
		names[n] = "select 1"
		u.Message('B', []byte("\x00"+n+"\x00\x00\x00"), true, true)
	}
	if u.Known(names, true); u.Holds() {
		t.Error("there is no bound for what is remembered")
	}
}

// TestUnchangedInOtherEncodings: a byte of another encoding may be a quote for the server or not.
func TestUnchangedInOtherEncodings(t *testing.T) {
	var u Unchanged
	u.Asked()
	u.Known(nil, false)
	if u.Message('Q', []byte("select 'a'\x00"), true, true); !u.Holds() {
		t.Error("ASCII is not understood")
	}
	if u.Message('Q', []byte("select '\x83\x5c'\x00"), true, true); u.Holds() {
		t.Error("another encoding is understood")
	}
}

// The statement that may have changed a state is told by its keywords alone.
func TestUnchangedBy(t *testing.T) {
	for _, c := range []struct {
		typ  byte
		body string
		want string
	}{
		{'Q', "set my.password = 'secret'\x00", "SET"},
		{'P', "name\x00select 'secret'\x00\x00\x00", "PREPARE AS SELECT"},
		{'P', "\x00listen secret\x00\x00\x00", "LISTEN"},
		{'B', "\x00secret\x00", "EXECUTE"},
		{'C', "Ssecret\x00", "DEALLOCATE"},
		{'d', "secret", "COPY"},
		{'F', "\x00\x00\x00\x01", ""},
	} {
		var u Unchanged
		u.Asked()
		u.Known(nil, true)
		u.Message(c.typ, []byte(c.body), true, true)
		if u.Message('Q', []byte("load 'x'\x00"), true, true); u.Holds() || u.By() != c.want {
			t.Errorf("%c %q: %q, want %q", c.typ, c.body, u.By(), c.want)
		}
		if u.Asked(); u.By() != "" {
			t.Error("what was before the question counts")
		}
	}
}
