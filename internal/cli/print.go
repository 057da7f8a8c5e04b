package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lib/termtext"
)

// PrintJSON prints v as indented JSON on standard output, with all control characters as \u009b: some terminals obey
// those that JSON may have as they are.
func PrintJSON(c *cobra.Command, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range string(text) {
		if r != '\n' && unicode.IsControl(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
			continue
		}
		b.WriteRune(r)
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), b.String())
	return err
}

// Say prints a message for the user on standard error, with its control characters escaped. Standard output is for
// data.
func Say(c *cobra.Command, format string, a ...any) {
	_, _ = fmt.Fprintln(c.ErrOrStderr(), Printable(fmt.Sprintf(format, a...)))
}

// Out returns the command's standard output for text. Control characters in it are escaped, see Printable.
func Out(c *cobra.Command) io.Writer { return textWriter{c.OutOrStdout()} }

// Err is Out for the standard error.
func Err(c *cobra.Command) io.Writer { return textWriter{c.ErrOrStderr()} }

// Data returns the command's standard output for data that a program or a person reads. On a terminal its control
// characters are escaped.
func Data(c *cobra.Command) io.Writer { return data(c.OutOrStdout(), IsTerminal(c.OutOrStdout())) }

func data(w io.Writer, terminal bool) io.Writer {
	if terminal {
		return textWriter{w}
	}
	return w
}

// textWriter escapes the control characters of a text.
type textWriter struct{ to io.Writer }

// Write writes p with its control characters escaped. A character must not be divided between two calls.
func (w textWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Printable(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Printable returns a text with each character that a terminal obeys, and each that is not seen, written as its code:
// \x1b. Names in a group are chosen by clients (a TLS server name, an application's name).
func Printable(text string) string { return termtext.Printable(text) }

// Cell is Printable for a text within a line: line breaks and tabs are escaped as well.
func Cell(text string) string { return termtext.Cell(text) }

// Linef prints a line, or a row of a table, in which each value stays in its line and its column: see termtext.Linef.
// Use it wherever a value is a name, or the text of another program.
func Linef(w io.Writer, format string, a ...any) { termtext.Linef(w, format, a...) }
