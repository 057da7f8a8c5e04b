package stmt

import (
	"bytes"
	"testing"
)

func TestRepeatable(t *testing.T) {
	for text, want := range map[string][2]bool{ // begins, ok
		"begin": {true, true}, "BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY;": {true, true}, "start transaction": {true, true}, "/* a */ begin; select 1": {true, true},
		"select 1": {false, true}, "select 1; begin": {false, true}, "insert into t values (1) returning x": {false, true}, "update t set x = lower($1) where y in (1, 2)": {false, true},
		"with w as (delete from t returning *) select count(*) from w": {false, true}, "select nextval('s')": {false, true}, "select now(), random()": {false, true},
		"savepoint s": {false, true}, "release savepoint s": {false, true}, "rollback to s": {false, true}, "rollback /* a */ work to savepoint s": {false, true}, "select case when true then 1 end": {false, true},
		"commit": {}, "end": {}, "rollback": {}, "abort": {}, "rollback and chain": {}, "rollback; begin": {}, "begin; commit": {}, "select 1; rollback": {}, "rollback work": {}, "rollback prepared 'x'": {},
		"rollback transaction work to s": {}, "select setval('s', 1)": {}, "select setval ('s', 1)": {}, "select pg_catalog.setval/**/('s', 1)": {}, "select currval('s')": {}, "select lastval()": {},
		"select my_function()": {}, "call p()": {}, "do $$ begin end $$": {}, "copy t from stdin": {}, "notify c": {}, "set x = 1": {}, "create table t (x int)": {}, "lock t": {}, "prepare transaction 'x'": {},
		"select 1 into temp t": {}, "select pg_advisory_xact_lock(1)": {}, "select lo_create(0)": {}, "select txid_current()": {}, "declare c cursor for select 1": {}, "listen c": {}, "select pg_notify('c', '')": {},
		"select set_config('a.b', '', true)": {}, "vacuum": {}, "truncate t": {}, "execute p": {}, "select \"my_function\"()": {}, "select '": {}, "": {false, true}, "begin\x00commit": {true, true},
	} {
		begins, ok := Repeatable([]byte(text))
		if !ok {
			begins = false
		}
		if got := [2]bool{begins, ok}; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// FuzzRepeatable: what may be executed again keeps the session, too, and ends no block.
func FuzzRepeatable(f *testing.F) {
	for _, s := range []string{"begin; select 1", "rollback to s", "select setval('s', 1)", "select pg_catalog . setval('s')", "commit"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, ok := Repeatable(text); ok && (EndingOf(text) != EndsNothing || !KeepsSession(cutAtZero(text))) {
			t.Errorf("%q", text)
		}
	})
}

func cutAtZero(text []byte) []byte {
	text, _, _ = bytes.Cut(text, []byte{0})
	return text
}
