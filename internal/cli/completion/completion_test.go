package completion

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// program returns a command line with the commands and flags that are completed.
func program(dir string) *cobra.Command {
	root := &cobra.Command{Use: "coterie"}
	root.PersistentFlags().String("node", dir, "")
	made := map[string]*cobra.Command{"": root}
	var command func(path string) *cobra.Command
	command = func(path string) *cobra.Command {
		if c := made[path]; c != nil {
			return c
		}
		parent, name := "", path
		if i := strings.LastIndexByte(path, ' '); i >= 0 {
			parent, name = path[:i], path[i+1:]
		}
		c := &cobra.Command{Use: name, RunE: func(*cobra.Command, []string) error { return nil }}
		command(parent).AddCommand(c)
		made[path] = c
		return c
	}
	for path := range arguments {
		command(path)
	}
	for path, all := range flags {
		for flag := range all {
			command(path).Flags().String(flag, "", "")
		}
	}
	Add(root)
	return root
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Replicas: []api.Replica{{Name: "north"}, {Name: "south"}, {Name: "\x1b[2J"}}})
	a.OnSQL("coterie.databases", []string{"name"}, []any{"shop"})
	a.OnSQL("availability_group_listeners", []string{"dns_name"}, []any{"orders-l"})
	a.OnSQL("coterie.settings", []string{"name"}, []any{"work_mem"}, []any{"wal_buffers"})
	for line, want := range map[string]string{
		"failover --to ":                    `north south \x1b[2J`,
		"failover --to n":                   "north",
		"failover ":                         "",
		"remove S":                          "south",
		"remove north ":                     "",
		"check link north s":                "south",
		"replica set so":                    "south",
		"replica set south avail":           "availability_mode=",
		"replica set south secondary.allow": "secondary.allow_connections=",
		"group set commit_r":                "commit_rule=",
		"database remove ":                  "shop",
		"listener set ":                     "orders-l",
		"listener remove o":                 "orders-l",
		"listener restart orders-l ":        "",
		"settings set w":                    "work_mem= wal_buffers=",
		"settings unset work_mem wal":       "wal_buffers",
		"member add-token --role w":         "witness",
		"member replace n":                  "north",
	} {
		root := program(a.Layout.Dir)
		var out, said bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&said)
		root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, strings.Split(line, " ")...))
		if err := root.ExecuteContext(context.Background()); err != nil {
			t.Fatal(err)
		}
		offered, _, _ := strings.Cut(out.String(), ":") // the directive to the shell follows
		if got := strings.Join(strings.Fields(offered), " "); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestCompletionWithoutAnAgent checks that nothing is offered, and nothing said, where no agent runs.
func TestCompletionWithoutAnAgent(t *testing.T) {
	t.Parallel()
	root := program(clitest.NewNode(t).Dir)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&bytes.Buffer{})
	root.SetArgs([]string{cobra.ShellCompRequestCmd, "remove", ""})
	if err := root.Execute(); err != nil || !strings.HasPrefix(out.String(), ":") {
		t.Errorf("%q, %v", out.String(), err)
	}
}
