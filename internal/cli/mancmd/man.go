package mancmd

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
)

// Man returns the command man, which the making of packages runs.
func Man() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "Write the manual pages of all commands into a directory", Args: cli.Args(1, "DIR"),
		Long: `Writes a manual page in section 1 for coterie and each of its commands: coterie.1, coterie-status.1 and so on. Packages have them
already; with a binary alone: coterie man /usr/local/share/man/man1.`,
		RunE: func(c *cobra.Command, a []string) error {
			if err := os.MkdirAll(a[0], 0o755); err != nil { //nolint:gosec // pages are for everybody
				return err
			}
			return write(c.Root(), a[0])
		},
	}
}

// write writes the pages of a command and of those below it.
func write(c *cobra.Command, dir string) error {
	if c.Hidden || c.Name() == "help" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, fileName(c)), page(c), 0o644); err != nil { //nolint:gosec // pages are for everybody
		return err
	}
	for _, sub := range c.Commands() {
		if err := write(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

func title(c *cobra.Command) string    { return strings.ReplaceAll(c.CommandPath(), " ", "-") }
func fileName(c *cobra.Command) string { return title(c) + ".1" }

// page returns the manual page of a command. It depends on nothing but the commands, and the date of the source.
func page(c *cobra.Command) []byte {
	var b bytes.Buffer
	_, date := buildinfo.Source()
	day, _, _ := strings.Cut(date, "T")
	fmt.Fprintf(&b, ".TH %q 1 %q %q \"Coterie\"\n", strings.ToUpper(title(c)), day, "coterie "+buildinfo.Version)
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", text(title(c)), text(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", text(c.UseLine()))
	if c.Long != "" {
		fmt.Fprintf(&b, ".SH DESCRIPTION\n%s", paragraphs(c.Long))
	}
	options(&b, "OPTIONS", c.NonInheritedFlags())
	options(&b, "OPTIONS OF EVERY COMMAND", c.InheritedFlags())
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", text(c.Example))
	}
	var also []string
	if c.HasParent() {
		also = append(also, title(c.Parent()))
	}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			also = append(also, title(sub))
		}
	}
	if len(also) > 0 {
		fmt.Fprintf(&b, ".SH SEE ALSO\n.BR %s (1)\n", text(strings.Join(also, "(1), ")))
	}
	return b.Bytes()
}

// paragraphs returns a text as it is broken into lines: tables of the help must stay tables.
func paragraphs(s string) string {
	var b strings.Builder
	for i, p := range strings.Split(s, "\n\n") {
		if i > 0 {
			b.WriteString(".PP\n")
		}
		if strings.Contains(p, "\n ") || strings.Contains(p, "   ") {
			fmt.Fprintf(&b, ".nf\n%s\n.fi\n", text(p))
			continue
		}
		b.WriteString(text(p) + "\n")
	}
	return b.String()
}

func options(b *bytes.Buffer, heading string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", heading)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if kind != "" {
			name += " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" && f.DefValue != "0" && f.DefValue != "0s" && f.Name != "node" {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", text(name), text(usage))
	})
}

// text escapes what troff would read as its own.
func text(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
