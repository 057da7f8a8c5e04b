package cli

import (
	"bytes"
	"fmt"
	"testing"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// TestPrintable checks that no control character of a name reaches a terminal, and that other text stays as it is.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "",
		"größer, 日本, \t tab\nline":       "größer, 日本, \t tab\nline",
		"u\x1b]0;pwned\x07\x1b[31mRED":   `u\x1b]0;pwned\x07\x1b[31mRED`,
		"back\bspace\rreturn\x7fdelete":  `back\x08space\x0dreturn\x7fdelete`,
		"C1 \u009b31m, half \xe2\x82":    `C1 \x9b31m, half \xe2\x82`,
		"a replacement character \ufffd": "a replacement character \ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

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
