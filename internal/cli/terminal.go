package cli

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// IsTerminal reports whether w is a file that is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Paint returns a status with its worst words in colour where standard output is a terminal and NO_COLOR is not set.
// The text must have no control characters.
func Paint(c *cobra.Command, text string) string {
	if !IsTerminal(c.OutOrStdout()) || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return text
	}
	return paint(text)
}

// paint colours the words that tell of trouble, and the one that tells of none.
func paint(text string) string {
	const red, yellow, green, off = "\x1b[31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
	head, rest, _ := strings.Cut(text, "\n")
	head = strings.NewReplacer(
		"   healthy   ", "   "+green+"healthy"+off+"   ", "   degraded   ", "   "+yellow+"degraded"+off+"   ",
		"   DOWN   ", "   "+red+"DOWN"+off+"   ", "NOT READY", yellow+"NOT READY"+off,
	).Replace(head)
	rest = strings.NewReplacer(
		"\n  Critical  ", "\n  "+red+"Critical"+off+"  ", "\n  Warning  ", "\n  "+yellow+"Warning"+off+"  ", "  NO ANSWER  ", "  "+red+"NO ANSWER"+off+"  ",
	).Replace(rest)
	return head + "\n" + rest
}
