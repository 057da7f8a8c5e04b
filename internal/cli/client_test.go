package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/config"
)

// TestOnlyNode checks which node directory a command takes that names none, and what it says.
func TestOnlyNode(t *testing.T) {
	before := nodes
	defer func() { nodes = before }()
	there, absent := t.TempDir(), filepath.Join(t.TempDir(), "absent")
	for _, tt := range []struct {
		name, usual, flag, variable string
		found                       []string
		want, says                  string
	}{
		{name: "the usual place", usual: there, found: []string{"/other"}, want: there},
		{name: "the only one elsewhere", usual: absent, found: []string{"/other"}, want: "/other", says: "node directory /other, the only one on this machine\n"},
		{name: "none", usual: absent, want: absent},
		{name: "two", usual: absent, found: []string{"/a", "/b"}, want: absent},
		{name: "named", usual: absent, flag: "/named", found: []string{"/other"}, want: "/named"},
		{name: "named by the variable", usual: absent, variable: absent, found: []string{"/other"}, want: absent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes = func() []string { return tt.found }
			t.Setenv("COTERIE_NODE", tt.variable)
			c := &cobra.Command{Use: "coterie"}
			c.Flags().String("node", tt.usual, "")
			var said bytes.Buffer
			c.SetErr(&said)
			if tt.flag != "" {
				if err := c.Flags().Set("node", tt.flag); err != nil {
					t.Fatal(err)
				}
			}
			if got := Node(c); got != tt.want || said.String() != tt.says {
				t.Errorf("%q, said %q", got, said.String())
			}
			if got := Node(c); got != tt.want || said.String() != tt.says {
				t.Errorf("asked again: %q, said %q", got, said.String())
			}
		})
	}
	nodes = func() []string { return []string{"/1", "/2", "/3", "/4", "/5", "/6", "/7"} }
	if text := noDirectory("/absent").Error(); !strings.Contains(text, "/5 and 2 more") || !strings.Contains(text, "coterie init") {
		t.Error(text)
	}
}

// TestInterruptedText holds that nobody is told of a Ctrl-C in the words of Go, and that a server's words stay.
func TestInterruptedText(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"interrupted":                        context.Canceled,
		"read the record: interrupted":       fmt.Errorf("read the record: %w", context.Canceled),
		"the server said: context canceled":  errors.New("the server said: context canceled"),
		"2 of 3 were restarted: interrupted": fmt.Errorf("2 of 3 were restarted: %w", context.Canceled),
	} {
		if got := text(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestNoAgentOfANodeThatHasLeft holds that nobody is told to start the agent of a node that has left its group.
func TestNoAgentOfANodeThatHasLeft(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{config.File: "start it with: coterie agent", config.File + ".left": "is no node any more"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c := &cobra.Command{Use: "status"}
		c.Flags().String("node", dir, "")
		if err := NoAgent(c, api.ErrNoAgent); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
