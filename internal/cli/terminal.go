package cli

import (
	"bufio"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// IsTerminal reports whether w is a file that is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Interactive reports whether the standard input of a command is a terminal, so that a person can be asked.
func Interactive(c *cobra.Command) bool {
	f, ok := c.InOrStdin().(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Confirm asks for a name to be typed, and refuses to go on if another line comes.
func Confirm(c *cobra.Command, name, question string, args ...any) error {
	Say(c, question, args...)
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n')
	if strings.TrimSpace(line) != name {
		return fail.Refusedf("not confirmed; nothing was changed")
	}
	return nil
}

// Paint returns a status with its worst words in colour where standard output is a terminal and NO_COLOR is not set.
// The text must have no control characters.
func Paint(c *cobra.Command, text string) string {
	if !Colours(c.OutOrStdout()) {
		return text
	}
	return paint(text)
}

// Colours reports whether w is a terminal that shows colours, and NO_COLOR is not set.
func Colours(w io.Writer) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
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
