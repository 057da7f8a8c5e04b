// Package fail has the kinds of failure that a command, a call between nodes and a statement tell apart, with the exit
// code and the SQLSTATE of each.
//
// Start reading at Error.
package fail

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is a kind of failure, by the name that it has in JSON documents and between nodes.
type Kind string

// The kinds of failure.
const (
	Ordinary  Kind = "error"     // anything that has no kind of its own
	Usage     Kind = "usage"     // the request is malformed: the command was typed wrongly
	Unhealthy Kind = "unhealthy" // the state of the group, or of the node, does not allow it now
	Refused   Kind = "refused"   // the request could lose data or interrupt service
)

// ExitCode returns the exit code of a command that fails in this way. A kind that this release does not know is an
// ordinary error.
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

// SQLState returns the SQLSTATE of a statement that fails in this way.
func (k Kind) SQLState() string {
	switch k {
	case Usage:
		return "22023" // invalid_parameter_value
	case Unhealthy:
		return "57P03" // cannot_connect_now
	case Refused:
		return "55000" // object_not_in_prerequisite_state
	default:
		return "XX000" // internal_error
	}
}

// codePrefix begins the codes of errors between nodes that carry a kind. Nodes of several releases exchange them.
const codePrefix = "API_"

// Code returns the code with which a node answers a call of another node that fails in this way.
func (k Kind) Code() string { return codePrefix + strings.ToUpper(string(k)) }

// KindOfCode returns the kind that a node's answer carries; ok is false if the code carries none.
func KindOfCode(code string) (k Kind, ok bool) {
	name, ok := strings.CutPrefix(code, codePrefix)
	return Kind(strings.ToLower(name)), ok
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

// KindOf returns the kind of the first error in err's tree that has one; Ordinary if none has.
func KindOf(err error) Kind {
	var known Error
	if errors.As(err, &known) {
		return known.Kind
	}
	return Ordinary
}

// Usagef returns an error of a request that is malformed.
func Usagef(format string, a ...any) error { return Error{Usage, fmt.Errorf(format, a...)} }

// Unhealthyf returns an error of a group or a node that is not well.
func Unhealthyf(format string, a ...any) error { return Error{Unhealthy, fmt.Errorf(format, a...)} }

// Refusedf returns an error of a request that could lose data or interrupt service.
func Refusedf(format string, a ...any) error { return Error{Refused, fmt.Errorf(format, a...)} }
