package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
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

// Printable returns the text with each control character but newline and tab, and each byte that is not UTF-8, written
// as its code: \x1b. Names in a group are chosen by clients (a TLS server name, an application's name), and a terminal
// obeys control characters.
func Printable(text string) string {
	unsafe := func(r rune) bool { return r != '\n' && r != '\t' && (r == utf8.RuneError || unicode.IsControl(r)) }
	if strings.IndexFunc(text, unsafe) < 0 {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, "\\x%02x", text[i])
		case r != utf8.RuneError && unsafe(r):
			fmt.Fprintf(&b, "\\x%02x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
