// Package fail has the kinds of failure that a command, a call between nodes and a statement tell apart, and the exit code of each.
//
// Start reading at Error.
package fail

import "fmt"

// Kind is a kind of failure. Its zero value is an ordinary error.
type Kind int

const (
	Ordinary  Kind = iota // anything that has no kind of its own
	Usage                 // the command was typed wrongly
	Unhealthy             // the group, or the node, is not well
	Refused               // what was asked for could lose data or interrupt service
)

// ExitCode returns the exit code of a command that fails in this way.
func (k Kind) ExitCode() int {
	switch k {
	case Usage:
		return 2
	case Unhealthy:
		return 3
	case Refused:
		return 4
	default:
		return 1
	}
}

// Error is an error with a kind. Its text is complete: what happened, why, and what to run next.
type Error struct {
	Kind Kind
	Err  error
}

// Error returns the text of the wrapped error.
func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e Error) Unwrap() error { return e.Err }

// Usagef returns an error of a command that was typed wrongly.
func Usagef(format string, a ...any) error { return Error{Usage, fmt.Errorf(format, a...)} }

// Unhealthyf returns an error of a group or a node that is not well.
func Unhealthyf(format string, a ...any) error { return Error{Unhealthy, fmt.Errorf(format, a...)} }

// Refusedf returns an error of a request that could lose data or interrupt service.
func Refusedf(format string, a ...any) error { return Error{Refused, fmt.Errorf(format, a...)} }
