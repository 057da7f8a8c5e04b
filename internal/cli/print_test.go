package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// TestOut checks that a table keeps its columns and loses its control characters, and so does a message.
func TestOut(t *testing.T) {
	t.Parallel()
	var out, said bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	c.SetErr(&said)
	w := tabwriter.NewWriter(Out(c), 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprint(w, "NAME\tX\nä\x1b[31m\t1\n")
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	Say(c, "hello %s", "\x1b[2J")
	if got := out.String() + said.String(); bytes.ContainsRune([]byte(got), '\x1b') || said.String() != "hello \\x1b[2J\n" {
		t.Errorf("printed %q", got)
	}
}

// TestDataOnATerminal checks that rows and JSON, which programs read, have no control characters for a terminal.
func TestDataOnATerminal(t *testing.T) {
	t.Parallel()
	const name = "u\x1b[31m\u009b31m\x7f"
	for terminal, want := range map[bool]string{true: `u\x1b[31m\x9b31m\x7f`, false: name} {
		var out bytes.Buffer
		if _, _ = fmt.Fprint(data(&out, terminal), name); out.String() != want {
			t.Errorf("terminal %v: %q", terminal, out.String())
		}
	}
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	if err := PrintJSON(c, map[string]any{"name": name, "n": 1}); err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(out.Bytes(), &read); err != nil || read["name"] != name {
		t.Errorf("%q, %v", read["name"], err)
	}
	if want := "{\n  \"n\": 1,\n  \"name\": \"u\\u001b[31m\\u009b31m\\u007f\"\n}\n"; out.String() != want {
		t.Errorf("%q", out.String())
	}
}
