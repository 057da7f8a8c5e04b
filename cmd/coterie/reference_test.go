package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coteriedb/coterie/internal/lab"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md")

// TestReference holds that docs/reference/cli.md has every command with its help and its flags.
func TestReference(t *testing.T) {
	const path = "../../docs/reference/cli.md"
	t.Setenv("COTERIE_NODE", "")
	var b strings.Builder
	b.WriteString("# The commands\n\n<!-- written by go test ./cmd/coterie -run TestReference -update from the commands; do not edit -->\n\n" +
		"What `--help` of each command and its manual page say. `coterie man DIR` writes the manual pages.\n" +
		"Exit codes: [failures](exit-codes.md). How and when to use them: [operate](../operating.md).\n\n" +
		"| command | |\n|---|---|\n")
	all := commandsBelow(newRoot())
	for _, c := range all {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), strings.ReplaceAll(c.Short, "|", "\\|"))
	}
	for _, c := range all {
		describe(&b, c)
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != b.String() {
		t.Errorf("docs/reference/cli.md is not what the commands are (%v): go test ./cmd/coterie -run TestReference -update", err)
	}
	if len(all) < 50 {
		t.Errorf("only %d commands found", len(all))
	}
}

// commandsBelow returns a command and those below it, in the order of the help.
func commandsBelow(c *cobra.Command) []*cobra.Command {
	found := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			found = append(found, commandsBelow(sub)...)
		}
	}
	return found
}

// describe writes the section of a command.
func describe(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n```\n%s\n```\n", c.CommandPath(), sentence(c.Short), c.UseLine())
	if c.Long != "" {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", strings.TrimSpace(c.Long))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.Trim(c.Example, "\n"), "\n  ", "\n")[2:])
	}
	flags := c.NonInheritedFlags()
	if !flags.HasAvailableFlags() {
		return
	}
	rows := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		if rows++; rows == 1 {
			b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
		}
		kind, usage := pflag.UnquoteUsage(f)
		usage = strings.ReplaceAll(usage, lab.DefaultDir(), "/var/tmp/coterie-lab") // which is root's
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value := "`" + f.DefValue + "`"
		switch {
		case f.DefValue == "" || f.DefValue == "false" || f.DefValue == "[]":
			value = ""
		case name == "--name string":
			value = "the machine's name"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, value, strings.ReplaceAll(usage, "|", "\\|"))
	})
}

func sentence(s string) string {
	if strings.HasSuffix(s, "?") {
		return s
	}
	return strings.TrimSuffix(s, ".") + "."
}

// TestDefaultsAreToldOnce checks that no flag's help tells a default beside the one that its words tell.
func TestDefaultsAreToldOnce(t *testing.T) {
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		for line := range strings.Lines(c.NonInheritedFlags().FlagUsages()) {
			if strings.Count(line, "(default") > 1 || strings.Contains(line, "(default 0s)") {
				t.Errorf("%s: %s", c.CommandPath(), line)
			}
		}
		for _, below := range c.Commands() {
			visit(below)
		}
	}
	visit(newRoot())
}
