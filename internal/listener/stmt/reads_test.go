package stmt

import "testing"

func TestOnlyReads(t *testing.T) {
	for text, want := range map[string]bool{
		"select 1": true,
		"":         true,
		"/* a */ SELECT count(*) FROM t; select now();": true,
		"values (1), (2)":                                           true,
		"table t":                                                   true,
		"show work_mem":                                             true,
		"with a as (select 1) select * from a":                      true,
		"select substring('abc' from 1 for 2)":                      true,
		"select pg_sleep(1)":                                        true,
		"select nextval('s')":                                       false,
		`select "update" from t`:                                    true,
		"select 'for update'":                                       true,
		"select * from t for update":                                false,
		"select * from t for no key update":                         false,
		"select * from t for share":                                 false,
		"select * from t for key share":                             false,
		"select * from t FOR /* a */ SHARE of t":                    false,
		"select 1; insert into t values (1)":                        false,
		"with a as (delete from t returning *) select 1":            false,
		"with a as (update t set x = 1 returning *) table a":        false,
		"insert into t values (1)":                                  false,
		"merge into t using s on true when matched then do nothing": false,
		"select setval('s', 1)":                                     false,
		"select lastval()":                                          false,
		"select f()":                                                false,
		"select pg_advisory_lock(1)":                                false,
		"select set_config('a.b', 'c', false)":                      false,
		"select 1 into t":                                           false,
		"begin":                                                     false,
		"select 1; commit":                                          false,
		"set work_mem = '1MB'":                                      false,
		"explain analyze select 1":                                  false,
		"select $$a$$":                                              false,
		"show all":                                                  false,
		`show "All"`:                                                false,
		"select * from pg_settings":                                 false,
		"call p()":                                                  false,
		"copy t to stdout":                                          false,
		"fetch c":                                                   false,
		"execute p":                                                 false,
	} {
		if got := OnlyReads([]byte(text + "\x00")); got != want {
			t.Errorf("%q: %v", text, got)
		}
		if OnlyReads([]byte(text)) && !KeepsSession([]byte(text)) {
			t.Errorf("%q changes the session", text)
		}
	}
}

func TestOnlyChange(t *testing.T) {
	for text, want := range map[string]bool{
		"insert into t values ($1, nextval('s')) returning x": true,
		"UPDATE t SET x = x + $1 WHERE y = $2;":               true,
		"with a as (delete from t returning *) select 1":      true,
		"select nextval('s')":                                 true,
		"select x from t for update":                          true,
		"select 1":                                            false,
		"update t set x = 1; update t set x = 2":              false,
		"update t set x = f()":                                false,
		"insert into t values (lastval())":                    false,
		"insert into t select 1; commit":                      false,
		"update pg_settings set setting = '1'":                false,
		"select 1 into t":                                     false,
		"truncate t":                                          false,
		"call p()":                                            false,
		"do 'begin end'":                                      false,
		"vacuum":                                              false,
		"create database d":                                   false,
		"copy t from stdin":                                   false,
		"refresh materialized view v":                         false,
		"notify c":                                            false,
		"":                                                    false,
	} {
		if got := OnlyChange([]byte(text + "\x00")); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestChangesRows(t *testing.T) {
	for text, want := range map[string]bool{
		"insert into t values (1)":                               true,
		"-- a comment\n UPDATE t set x = 1":                      true,
		"with a as (select 1) delete from t":                     true,
		"with a as (with b as (select 1) delete from t) table t": true,
		"with a as (select 1 from t for update) select 1":        false,
		"with a as (select 1) select 1 from t for no key update": false,
		"(select x from t for update)":                           false,
		"select x, nextval('s') as update from t":                false,
	} {
		if got := ChangesRows([]byte(text + "\x00")); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
