package stmt

import (
	"strings"
	"testing"
)

func TestRefusal(t *testing.T) {
	reserved := func(name string) (string, bool) {
		return "use something else", strings.HasPrefix(name, "synchronous_standby") || strings.HasPrefix(name, "recovery_target") || name == "primary_conninfo" || name == "restore_command"
	}
	system := func(name, value string) Change {
		return Change{Scope: ScopeSystem, Setting: name, Value: value}
	}
	role := func(value string) Change {
		return Change{Scope: ScopeRole, Setting: "synchronous_commit", Value: value}
	}
	for name, c := range map[string]struct {
		change  Change
		relaxed bool
		want    string // in the message; "": allowed
	}{
		"names":                 {system("synchronous_standby_names", ""), true, "synchronous_standby_names"},
		"names, RESET":          {Change{Scope: ScopeSystem, Setting: "synchronous_standby_names", Reset: true}, true, "synchronous_standby_names"},
		"conninfo":              {system("primary_conninfo", "x"), false, "primary_conninfo"},
		"restore":               {system("restore_command", "x"), false, "restore_command"},
		"recovery":              {system("recovery_target_time", "x"), false, "recovery_target_time"},
		"prefetch":              {system("recovery_prefetch", "off"), false, ""},
		"all":                   {Change{Scope: ScopeSystem, All: true, Reset: true}, true, "RESET ALL"},
		"all of a role":         {Change{Scope: ScopeRole, All: true, Reset: true}, false, ""},
		"odd":                   {system("", ""), true, "spelling"},
		"other":                 {system("work_mem", "1MB"), false, ""},
		"names of a role":       {Change{Scope: ScopeRole, Setting: "search_path", Value: "x"}, false, ""},
		"off":                   {system("synchronous_commit", "off"), false, "synchronous_commit"},
		"off, allowed":          {system("synchronous_commit", "off"), true, ""},
		"on":                    {system("synchronous_commit", "on"), false, ""},
		"local of a role":       {role("local"), false, "ALTER ROLE"},
		"remote_write":          {role("remote_write"), false, "ALTER ROLE"},
		"remote_apply":          {role("remote_apply"), false, ""},
		"an odd value":          {role(""), false, "ALTER ROLE"},
		"reset of a role":       {Change{Scope: ScopeRole, Setting: "synchronous_commit", Reset: true}, false, ""},
		"an odd name of a role": {Change{Scope: ScopeRole}, false, "ALTER ROLE"},
	} {
		got := Refuse(c.change, reserved, c.relaxed)
		if (got == nil) != (c.want == "") || got != nil && (!strings.Contains(got.Message, c.want) || got.Hint == "") {
			t.Errorf("%s: %+v, want %q", name, got, c.want)
		}
	}
}
