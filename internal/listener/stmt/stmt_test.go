package stmt

import (
	"strings"
	"testing"
)

func TestOnlyQueries(t *testing.T) {
	for text, want := range map[string]bool{
		"select 1":                              true,
		"SELECT count(*) FROM t; commit":        true,
		"insert into t(a) values (lower('x'))":  true,
		"select /* a /* nested */ comment */ 1": true,
		"":                                      true,
		"select set_config('a.b', 'c', false)":  false,
		"select myfunction(1)":                  false,
		"select other.lower('x')":               false,
		"select pg_catalog.lower('x')":          true,
		"set work_mem = '1MB'":                  false,
		"select $$x$$":                          false,
		"select $$ '$$, f(1), $$ '$$":           false,
		"select $1":                             true,
		`select e'\''`:                          false,
		"select 'not closed":                    false,
		"select 1 -- x\r; set a.b = 1":          false,
		"select 1 -- x\nwhere true":             true,
		"select myfunction\v(1)":                false, // space since PostgreSQL 16
		"select 1))":                            true,  // PostgreSQL refuses it
	} {
		if got := OnlyQueries([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestVerdict(t *testing.T) {
	query := func(text string) func(*Requests) {
		return func(r *Requests) {
			r.QueryText([]byte(text + "\x00"))
			r.Forwarded('Q', []byte(text+"\x00"))
		}
	}
	for name, c := range map[string]struct {
		status byte
		do     []func(*Requests)
		want   Verdict
	}{
		"nothing":              {'I', nil, Idle},
		"a query":              {'I', []func(*Requests){query("select 1")}, Unknown},
		"a query in a block":   {'T', []func(*Requests){query("select 1")}, Aborted},
		"a commit":             {'T', []func(*Requests){query("commit")}, Unknown},
		"an unknown word":      {'T', []func(*Requests){query("frobnicate")}, Unknown},
		"a setting":            {'I', []func(*Requests){query("set a = 1")}, Aborted},
		"several statements":   {'T', []func(*Requests){query("select 1; select 2")}, Unknown},
		"answered":             {'I', []func(*Requests){query("select 1"), func(r *Requests) { r.Answered('I', true) }}, Idle},
		"an idle, open block":  {'T', nil, Aborted},
		"a rollback to a name": {'T', []func(*Requests){query("rollback to a")}, Aborted},
		"a chain of nothing":   {'T', []func(*Requests){query("rollback work and chain")}, Aborted},
		"and what follows it":  {'T', []func(*Requests){query("rollback and chain"), query("insert into t values (1)")}, Unknown},
		"AND CHAIN of what":    {'T', []func(*Requests){query("rollback and chain; commit")}, Unknown},
		"a prepared one":       {'T', []func(*Requests){query("rollback prepared 'and chain'")}, Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			var r Requests
			r.Answered(c.status, true)
			for _, f := range c.do {
				f(&r)
			}
			if got := r.Verdict(); got != c.want {
				t.Errorf("verdict %d, want %d", got, c.want)
			}
		})
	}
}

// TestPreparedBeginIsCut holds that a prepared BEGIN can be cut where the text of its name is known for certain, and
// where its request does nothing else.
func TestPreparedBeginIsCut(t *testing.T) {
	texts := map[string]string{"b": "begin isolation level serializable", "u": "update t set a = 1", "c": "commit", "p": "PREPARE p AS SELECT 1"}
	known := func(name string) (string, bool) { text, ok := texts[name]; return text, ok }
	messages := map[string][]byte{"D": []byte("P\x00"), "E": []byte("\x00\x00\x00\x00\x00"), "S": nil, "P": []byte("n\x00select 1\x00"), "Q": []byte("begin\x00")}
	for name, statement := range map[string]string{"Bb": "b", "Bu": "u", "Bc": "c", "Bp": "p", "Bx": "x"} {
		messages[name] = append([]byte{0}, statement+"\x00"...)
	}
	for _, c := range []struct {
		sent         string
		status       byte
		texts        func(string) (string, bool)
		may, inBlock bool
	}{
		{"Bb D E S", 'I', known, true, true},
		{"Bb E S", 'T', known, false, true}, // PostgreSQL warns, but a name that is not known to be harmless counts as COMMIT
		{"Bb E S", 'I', nil, false, false},
		{"Bx E S", 'I', known, false, false},
		{"Bu E S", 'I', known, false, false},
		{"Bc E S", 'I', known, false, false},
		{"Bp E S", 'I', known, false, false},
		{"Bb E E S", 'I', known, false, false},
		{"Bb E Bu E S", 'I', known, false, false},
		{"Bu E Bb E S", 'I', known, false, false},
		{"P Bb E S", 'I', known, false, false},
		{"Bb E S Bu", 'I', known, false, false},
		{"Bb E S Bu E S", 'I', known, false, false},
		{"Q", 'I', known, true, true},
	} {
		r := Requests{Texts: c.texts}
		r.Forwarded('P', []byte("b\x00begin\x00"))
		r.Forwarded('S', nil)
		r.Answered(c.status, true)
		for m := range strings.FieldsSeq(c.sent) {
			r.Forwarded(m[0], messages[m])
		}
		if may, inBlock := r.Cut(false); may != c.may || may && inBlock != c.inBlock {
			t.Errorf("%s in %c: %v, in a block %v", c.sent, c.status, may, inBlock)
		}
	}
}

func TestFirstWordsThatMatter(t *testing.T) {
	for text, want := range map[string]bool{"drop database a": true, " CREATE  DATABASE a": true, "drop table a": false, "select 1": false, "": false} {
		if got := NeedsDatabaseAlone([]byte(text)); got != want {
			t.Errorf("%q needs its database alone: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"\x00copy t from stdin\x00": true, "\x00 COPY t": true, "\x00select 1\x00": false, "\x00\x00": false, "\x00(copy)\x00": true} {
		if got := MayCopy([]byte(text)); got != want {
			t.Errorf("%q may be a COPY: %v", text, got)
		}
	}
	for tag, want := range map[string]Effect{"SELECT 1": Reads, "SET": NoEffect, "BEGIN": NoEffect, "COMMIT": Writes, "INSERT 0 1": Writes} {
		if got := EffectOf([]byte(tag)); got != want {
			t.Errorf("%s has the effect %d, want %d", tag, got, want)
		}
	}
}

// Messages without a Sync are of one transaction where none of them can end it, and it was open or is begun first.
func TestOneTransaction(t *testing.T) {
	for _, c := range []struct {
		status byte
		texts  string
		want   bool
	}{
		{'T', "insert into t values (1)|update t set a = 1", true},
		{'T', "savepoint a|set local x = 1|insert into t values (1)|rollback to a", true},
		{'I', "begin|insert into t values (1)|select 1", true},
		{'I', "set x = 1|start transaction|insert into t values (1)", true},
		{'I', "insert into t values (1)", false},
		{0, "begin|insert into t values (1)", true},
		{0, "insert into t values (1)", false},
		{'I', "begin|commit|begin", false},
		{'I', "begin|rollback|begin", false},
		{'T', "rollback|begin|insert into t values (1)", false},
		{'T', "rollback and chain|insert into t values (1)", false},
		{'T', "insert into t values (1)|commit|begin", false},
		{'T', "prepare transaction 'x'|begin", false},
		{'E', "select 1", false},
		{'I', "insert into t values (1)|begin", false},
		{'I', "vacuum|begin", false},
	} {
		var r Requests
		r.Answered(c.status, true)
		for text := range strings.SplitSeq(c.texts, "|") {
			r.Forwarded('P', []byte("\x00"+text+"\x00"))
			r.Forwarded('B', []byte("\x00\x00"))
			r.Forwarded('E', []byte("\x00\x00\x00\x00\x00"))
		}
		if got := r.OneTransaction(); got != c.want {
			t.Errorf("%s in %c: %v", c.texts, c.status, got)
		}
		r.Forwarded('S', nil)
		if r.OneTransaction() {
			t.Errorf("%s in %c: behind its Sync", c.texts, c.status)
		}
	}
}

// A transaction has a number once a command has changed rows, as its tag tells.
func TestChangedRows(t *testing.T) {
	for tag, want := range map[string]bool{
		"INSERT 0 1": true, "INSERT 0 0": false, "UPDATE 12": true, "UPDATE 0": false, "DELETE 3": true, "DELETE 0": false, "MERGE 1": true, "MERGE 0": false,
		"SELECT 1": false, "BEGIN": false, "COMMIT": false, "INSERT": false, "": false, "CREATE TABLE": false, "COPY 3": false,
	} {
		if got := ChangedRows([]byte(tag)); got != want {
			t.Errorf("%q: %v", tag, got)
		}
	}
}

// Endings changes with each request that may end the block, and with no other.
func TestEndings(t *testing.T) {
	query := func(text string) func(*Requests) {
		return func(r *Requests) {
			body := []byte(text + "\x00")
			r.QueryText(body)
			r.Forwarded('Q', body)
		}
	}
	batch := func(text string) func(*Requests) {
		return func(r *Requests) {
			r.Forwarded('P', []byte("\x00"+text+"\x00\x00\x00"))
			r.Forwarded('B', make([]byte, 8))
			r.Forwarded('E', make([]byte, 5))
			r.Forwarded('S', nil)
		}
	}
	for _, text := range []string{"insert into t values (1)", "select 1", "savepoint a", "rollback to a", "set x = 1", "begin", "create table x ()", "call p()"} {
		for i, request := range []func(*Requests){query(text), batch(text)} {
			var r Requests
			r.Answered('T', true)
			was := r.Endings()
			if request(&r); r.Endings() != was {
				t.Errorf("%q, %d: ends the block", text, i)
			}
		}
	}
	for _, text := range []string{"commit", "end", "rollback", "abort", "rollback and chain", "commit and chain", "prepare transaction 'x'", "select 1; commit; begin", "insert into t values (1); select 2", "something"} {
		for i, request := range []func(*Requests){query(text), batch(text)} {
			var r Requests
			r.Answered('T', true)
			was := r.Endings()
			if request(&r); r.Endings() == was && (i == 0 || !Works([]byte(text))) { // a batch has one statement in each text
				t.Errorf("%q, %d: does not end the block", text, i)
			}
		}
	}
	var r Requests
	was := r.Endings()
	if r.ForgetUnnamed(false); r.Endings() == was {
		t.Error("what the kernel has relayed ends nothing")
	}
}
