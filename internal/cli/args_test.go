package cli_test

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
)

// TestArgsOfACommandWithOthersBelow holds that a mistyped command is answered with those that there are.
func TestArgsOfACommandWithOthersBelow(t *testing.T) {
	c := &cobra.Command{Use: "settings", Args: cli.Args(0, "no arguments"), RunE: func(*cobra.Command, []string) error { return nil }}
	for _, name := range []string{"set", "unset"} {
		c.AddCommand(&cobra.Command{Use: name, RunE: func(*cobra.Command, []string) error { return nil }})
	}
	if err := c.Args(c, []string{"reset", "work_mem"}); err == nil || err.Error() != `settings has no command "reset"; it has set, unset, see settings --help` {
		t.Error(err)
	}
	if err := c.Args(c, nil); err != nil {
		t.Error(err)
	}
}

// TestArgs checks that the error for a wrong number of arguments names the missing or the superfluous ones.
func TestArgs(t *testing.T) {
	c := &cobra.Command{Use: "kill NODE"}
	for _, x := range []struct {
		given []string
		says  string // empty: accepted
	}{
		{nil, "kill needs the node's name; see kill --help"},
		{[]string{"n1"}, ""},
		{[]string{"n1", "postgres"}, `kill needs the node's name, and does not know what to do with "postgres"; see kill --help`},
		{[]string{"n1", "n2", "n3"}, `"n2 n3"`},
	} {
		err := cli.Args(1, "the node's name")(c, x.given)
		if (err == nil) != (x.says == "") {
			t.Fatalf("%q: %v", x.given, err)
		}
		if err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%q: %v, want %s", x.given, err, x.says)
		}
	}
}
