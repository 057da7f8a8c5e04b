package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestFunctionsTakeAnyArguments holds that a query that calls a function with any number of arguments of any type is
// answered or refused: a panic would end the session, and the engine's memory would not come back.
func TestFunctionsTakeAnyArguments(t *testing.T) {
	f := demo()
	c := open(t, &f)
	ask := func(text string) (err error) {
		defer func() {
			if r := recover(); r != nil {
				t.Errorf("%s: %v", text, r)
			}
		}()
		_, _, err = query(t.Context(), c, text)
		return err
	}
	for name := range callable() {
		for _, args := range []string{"", "NULL", "1", "'x'", "NULL, NULL", "-1, 2", "'x', 'y'", "1.5, 'x', 3", "'x', -1, 2, 'y'"} {
			var known *Error
			if err := ask("SELECT " + name + "(" + args + ")"); err != nil && !errors.As(err, &known) {
				t.Errorf("%s(%s): %v", name, args, err)
			}
		}
	}
	var refused *Error
	if err := ask("SELECT array_to_string()"); !errors.As(err, &refused) || refused.State != "42883" {
		t.Errorf("without an argument: %v", err)
	}
}

// TestSecretValuesAreMarked holds that no view shows the value that a server has for a setting that may be secret, that
// servers can be compared all the same, and that the name of a role makes no value secret.
func TestSecretValuesAreMarked(t *testing.T) {
	f := demo()
	f.Settings = func() map[ag.ReplicaID][]Setting {
		of := func(command string) []Setting {
			return []Setting{
				{Name: "archive_command", Value: command},
				{Name: "restore_command"},
				{Name: "primary_conninfo written in /etc/x.conf", Value: "password=secret"},
				{Name: "synchronous_commit of role monkey", Value: "off"},
				{Name: "work_mem", Value: "4MB"},
			}
		}
		return map[ag.ReplicaID][]Setting{"a": of("cp %p /secret"), "b": of("cp %p /secret"), "c": of("cp %p /secret2")}
	}
	c := open(t, &f)
	for _, table := range []string{"coterie.settings", "coterie.parameters"} {
		if got := ask(t, c, "select * from "+table); strings.Contains(got, "secret") || !strings.Contains(got, "hidden:") {
			t.Errorf("%s: %s", table, got)
		}
	}
	for query, want := range map[string]string{
		"select name, count(distinct value) from coterie.settings group by name order by 1":                       "archive_command|2\nprimary_conninfo written in /etc/x.conf|1\nrestore_command|1\nsynchronous_commit of role monkey|1\nwork_mem|1",
		"select name, value from coterie.settings where node = 'a' and value not like 'hidden:%' order by 1":      "restore_command|\nsynchronous_commit of role monkey|off\nwork_mem|4MB",
		"select name, hidden from coterie.settings where node = 'a' order by 1":                                   "archive_command|true\nprimary_conninfo written in /etc/x.conf|true\nrestore_command|false\nsynchronous_commit of role monkey|false\nwork_mem|false",
		"select distinct hidden from coterie.parameters where name = 'archive_command'":                           "true",
		"select count(distinct in_force), count(in_force) from coterie.parameters where name = 'archive_command'": "2|3",
	} {
		if got := ask(t, c, query); got != want {
			t.Errorf("%s\n got %s\nwant %s", query, got, want)
		}
	}
}
