package benchcmd

import (
	"io"
	"strings"
	"testing"
)

// TestTargetThatDoesNotAnswer: clients look for a server for as long as a run lasts, so a string that leads nowhere is refused before.
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
