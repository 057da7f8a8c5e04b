package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// ExitError is the error of a command whose child process has printed the reason of its failure. Code is the exit code
// of that process.
type ExitError struct{ Code int }

// Error returns no text: the child process has printed the reason.
func (e ExitError) Error() string { return "" }

// ErrUnhealthy ends a command with the exit code of an unhealthy group. Its text is empty, because the command has
// printed the problem.
var ErrUnhealthy = fail.Error{Kind: fail.Unhealthy, Err: errors.New("")}

// canceled has the words of Go for a Ctrl-C in those of an administrator.
var canceled = strings.NewReplacer("context canceled", "interrupted", "interrupt signal received", "interrupted", "terminated signal received", "interrupted")

// text returns an error as people are told it.
func text(err error) string {
	if errors.Is(err, context.Canceled) {
		return canceled.Replace(err.Error())
	}
	return err.Error()
}

// Report prints the error of a command on standard error and returns the exit code of the process.
func Report(err error) int {
	if err == nil {
		return 0
	}
	if msg := text(err); msg != "" {
		fmt.Fprintln(os.Stderr, "coterie: "+Printable(msg))
	}
	var other ExitError
	if errors.As(err, &other) {
		return other.Code
	}
	return fail.KindOf(err).ExitCode()
}
