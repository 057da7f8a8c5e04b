package stmt

import "testing"

func TestTag(t *testing.T) {
	for text, want := range map[string]string{
		"set my.password = 'secret'":                          "SET",
		"SET SESSION work_mem = '4MB'":                        "SET SESSION",
		"set role lender":                                     "SET ROLE",
		"create temp table secret (x int)":                    "CREATE TEMP TABLE",
		"create or replace temporary view v as select 1":      "CREATE OR REPLACE TEMPORARY VIEW",
		"select set_config('a.b', 'secret', false)":           "SELECT",
		"/* secret /* nested */ */ -- secret\n listen secret": "LISTEN",
		"/* secret without an end":                            "",
		"-- secret":                                           "",
		"secret":                                              "",
		"'secret'":                                            "",
		"":                                                    "",
		"set\x00secret":                                       "SET",
		"prepare transaction 'secret'":                        "PREPARE TRANSACTION",
		"settings":                                            "",
		"load 'secret'":                                       "LOAD",
		"select_and_more_and_more_and_more_than_a_word_has_in":      "",
		"do $$ begin perform set_config('x.y', '1', false); end $$": "DO",
	} {
		if got := Tag([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestLeaves(t *testing.T) {
	for text, want := range map[string]string{
		"\n Create temp table t (x int)": "CREATE TEMP TABLE", "create local temporary sequence s": "CREATE LOCAL TEMPORARY SEQUENCE", "listen c": "LISTEN",
		"declare c cursor with hold for select 1": "DECLARE", "create table temp (x int)": "CREATE TABLE TEMP", "create table t (x int)": "", "delete from t": "", "commit": "", "listen": "", "": "",
	} {
		if got := Leaves('Q', []byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if got := Leaves('P', []byte("name\x00"+text+"\x00\x00\x00")); got != want && text != "listen" {
			t.Errorf("Parse of %q: %q, want %q", text, got, want)
		}
	}
}
