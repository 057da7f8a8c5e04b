package mancmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// TestPages holds that each command has a page with its help, its flags and its neighbours, and that no line of a help
// is read as a request of troff.
func TestPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	c := Man()
	if r := clitest.Run(t, c, t.TempDir(), dir); r.Err != nil {
		t.Fatal(r.Err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "coterie.1")); err != nil || !strings.Contains(string(b), ".TH \"COTERIE\" 1") {
		t.Errorf("%s, %v", b, err)
	}
	clitest.Run(t, Man(), t.TempDir()).Refused(t, 2, "DIR")

	root := &cobra.Command{Use: "tool", Short: "A tool"}
	sub := &cobra.Command{Use: "do NAME", Short: "Do it", Long: "Does it.\n.not a request\n\nA table:\n  one   two", Example: "  tool do x", RunE: func(*cobra.Command, []string) error { return nil }}
	sub.Flags().StringP("file", "f", "here", "the `path` of a file")
	hidden := &cobra.Command{Use: "secret", Hidden: true, RunE: sub.RunE}
	root.AddCommand(sub, hidden)
	page := string(page(sub))
	for _, has := range []string{
		".TH \"TOOL-DO\" 1 ", "tool\\-do \\- Do it\n", ".B tool do NAME [flags]\n", "\\&.not a request\n", ".nf\nA table:\n  one   two\n.fi\n", ".B \\-f, \\-\\-file path\n", "(default here)",
		".SH EXAMPLES\n.nf\n  tool do x\n.fi\n", ".BR tool (1)\n",
	} {
		if !strings.Contains(page, has) {
			t.Errorf("no %q in\n%s", has, page)
		}
	}
	if err := write(root, dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tool-secret.1")); err == nil {
		t.Error("a hidden command has a page")
	}
}
