package groupcmd

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

func TestListenerClauses(t *testing.T) {
	add := func(a ...string) func(...string) (string, error) {
		return func(ips ...string) (string, error) { return listenerAdded(a, ips) }
	}
	set := func(a ...string) func(...string) (string, error) {
		return func(ips ...string) (string, error) { return listenerChanged(a, ips) }
	}
	for _, c := range []struct {
		clause func(...string) (string, error)
		ips    []string
		want   string // empty: the arguments are refused
	}{
		{add("l"), nil, "ADD LISTENER N'l' ()"},
		{add("o-l", "1433"), nil, "ADD LISTENER N'o-l' (PORT = 1433)"},
		{add("l", "1433"), []string{"10.0.1.99/20", "fd00::9"}, "ADD LISTENER N'l' (WITH IP ((N'10.0.1.99', N'255.255.240.0'), (N'fd00::9')), PORT = 1433)"},
		{add("l"), []string{"fd00::9/64"}, "ADD LISTENER N'l' (WITH IP ((N'fd00::9')))"},
		{add("x", "99999"), nil, ""},
		{add("x", "0"), nil, ""},
		{set("x", "65536"), nil, ""},
		{add("l"), []string{"10.0.1.99"}, ""}, // the prefix length is missing
		{add("l"), []string{"fd00::9/48"}, ""},
		{add("l"), []string{"N'10.0.0.9')"}, ""},
		{set("l", "1433"), nil, "MODIFY LISTENER N'l' (PORT = 1433)"},
		{set("l"), []string{"10.0.1.99/24"}, "MODIFY LISTENER N'l' (ADD IP (N'10.0.1.99', N'255.255.255.0'))"},
		{set("l"), nil, ""},
		{set("l", "1433"), []string{"10.0.1.99/24"}, ""},
		{set("l"), []string{"10.0.1.99/24", "fd00::9"}, ""},
	} {
		got, err := c.clause(c.ips...)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v; want %q", c.ips, got, err, c.want)
		}
		if c.want == "" {
			continue
		}
		if _, err := ddl.Parse("ALTER AVAILABILITY GROUP [g] " + got); err != nil {
			t.Errorf("%s: %v", got, err)
		}
	}
}

// TestClauseArguments checks that a command accepts the arguments that its usage line names, and no more.
func TestClauseArguments(t *testing.T) {
	for _, c := range []struct {
		use   string
		least int
		given string
		says  string // empty: accepted
	}{
		{"add NAME [PORT]", 1, "", "needs NAME [PORT]"},
		{"add NAME [PORT]", 1, "a 1", ""},
		{"add NAME [PORT]", 1, "a 1 b", `does not know what to do with "b"`},
		{"set OPTION=VALUE…", 1, "a b c d", ""},
		{"set", 0, "a", `needs no arguments, and does not know what to do with "a"`},
	} {
		cmd := alter(usage{line: c.use}, c.least, nil)
		err := cmd.Args(cmd, strings.Fields(c.given))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s, given %q: %v, want %q", c.use, c.given, err, c.says)
		}
	}
}

// TestPortsAreNamed holds that listener show says of each kind of port which clients it serves.
func TestPortsAreNamed(t *testing.T) {
	for kind, serves := range map[string]string{"TSQL": "clients that write", "TSQL_READ_ONLY": "clients that read", "HTTP": "health checks and metrics"} {
		if !strings.Contains(listenerPorts, "WHEN '"+kind+"' THEN '"+serves+"'") {
			t.Errorf("ports of the kind %s are not said to serve %s", kind, serves)
		}
	}
}

// TestListIsShow holds that every noun that is shown takes the word by which others are listed.
func TestListIsShow(t *testing.T) {
	for _, c := range Clauses() {
		if below, _, err := c.Find([]string{"list"}); err != nil || below == c {
			t.Errorf("%s takes no list: %v", c.Name(), err)
		}
	}
}
