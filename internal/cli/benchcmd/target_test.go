package benchcmd

import (
	"io"
	"strings"
	"testing"
)

// TestTargetThatDoesNotAnswer: clients retry for the whole run, so a wrong connection string is refused before it.
func TestTargetThatDoesNotAnswer(t *testing.T) {
	for _, args := range [][]string{{"--target-a", nowhere, "--target-b", nowhere}, {"--group", nowhere}} {
		c := Bench()
		c.SetArgs(append([]string{"read"}, args...))
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetOut(io.Discard)
		c.SetErr(io.Discard)
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), args[len(args)-2]+": ") || strings.Contains(err.Error(), "hush") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
