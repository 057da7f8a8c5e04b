package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Exited is the error of a command whose other process has printed why it failed, and left this exit code.
type Exited struct{ Code int }

func (e Exited) Error() string { return "" }

// ErrUnhealthy ends a command that has printed what is wrong.
var ErrUnhealthy = fail.Error{Kind: fail.Unhealthy, Err: errors.New("")}

// Report prints a command's error and returns the exit code of the process.
func Report(err error) int {
	if err == nil {
		return 0
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(os.Stderr, "coterie: "+msg)
	}
	var other Exited
	var known fail.Error
	switch {
	case errors.As(err, &other):
		return other.Code
	case errors.As(err, &known):
		return known.Kind.ExitCode()
	case errors.Is(err, api.ErrNoAgent):
		return fail.Unhealthy.ExitCode()
	}
	return fail.Ordinary.ExitCode()
}
