package clitest

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Ran is the outcome of a command.
type Ran struct {
	Out  string // standard output
	Said string // standard error
	Err  error
	Code int // of the process, had it been one
}

// Run runs the program with these arguments and one command in it, on the node directory dir. The command ends with the
// test.
func Run(t *testing.T, c *cobra.Command, dir string, args ...string) Ran {
	t.Helper()
	return RunIn(t.Context(), c, dir, args...)
}

// RunIn is Run with a context.
func RunIn(ctx context.Context, c *cobra.Command, dir string, args ...string) Ran {
	root := &cobra.Command{Use: "coterie", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().String("node", dir, "")
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddGroup(&cobra.Group{ID: c.GroupID})
	root.AddCommand(c)
	cli.NeedCommand(root)
	var out, said bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&said)
	root.SetIn(strings.NewReader(""))
	root.SetArgs(append([]string{c.Name()}, args...))
	err := root.ExecuteContext(ctx)
	code := 0
	if err != nil {
		code = fail.KindOf(err).ExitCode()
	}
	return Ran{out.String(), said.String(), err, code}
}

// Refused checks that a command printed nothing on standard output, ended with this exit code, and said the text.
func (r Ran) Refused(t *testing.T, code int, says string) {
	t.Helper()
	if r.Err == nil || r.Code != code || !strings.Contains(r.Err.Error(), says) || r.Out != "" {
		t.Errorf("exit code %d, error %v, output %q; want exit code %d, an error with %q, and no output", r.Code, r.Err, r.Out, code, says)
	}
}
