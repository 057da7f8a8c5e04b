// Package fail has the kinds of failure that a command, a call between nodes and a statement tell apart. One table
// gives each its exit code and its SQLSTATE (Kind), and one each numbered message its kind and its SQLSTATE
// (Numberedf).
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
	Usage     Kind = "usage"     // the request is malformed, or names something that does not exist
	Unhealthy Kind = "unhealthy" // the state of the group, or of the node, does not allow it now
	Refused   Kind = "refused"   // the request could lose data or interrupt service
)

// outcome is how a kind of failure is reported to those that do not read its text.
type outcome struct {
	exit  int
	state string // SQLSTATE
}

var outcomes = map[Kind]outcome{
	Ordinary:  {1, "XX000"}, // internal_error
	Usage:     {2, "22023"}, // invalid_parameter_value
	Unhealthy: {3, "57P03"}, // cannot_connect_now
	Refused:   {4, "55000"}, // object_not_in_prerequisite_state
}

// outcome returns that of an ordinary error for a kind that this release does not know.
func (k Kind) outcome() outcome {
	if o, ok := outcomes[k]; ok {
		return o
	}
	return outcomes[Ordinary]
}

// ExitCode returns the exit code of a command that fails in this way. A kind that this release does not know is an
// ordinary error.
func (k Kind) ExitCode() int { return k.outcome().exit }

// SQLState returns the SQLSTATE of a statement that fails in this way.
func (k Kind) SQLState() string { return k.outcome().state }

// states are the SQLSTATEs that tell a kind, by their beginning; of several beginnings the longest decides. Any other
// state, such as a timeout, a broken protocol or a bug, is an ordinary error.
var states = map[string]Kind{
	"0A":    Usage,     // feature not supported
	"22":    Usage,     // data exception
	"42":    Usage,     // syntax error or access rule violation, something undefined or duplicate
	"53":    Unhealthy, // insufficient resources
	"55":    Refused,   // object not in prerequisite state
	"55006": Unhealthy, // object in use
	"55P02": Usage,     // the parameter cannot be changed
	"57P":   Unhealthy, // shutdown, cannot connect now
}

// KindOfState returns the kind of failure that an SQLSTATE tells.
func KindOfState(state string) Kind {
	for n := len(state); n > 0; n-- {
		if k, ok := states[state[:n]]; ok {
			return k
		}
	}
	return Ordinary
}

// codePrefix begins the codes of errors between nodes that carry a kind. Nodes of several releases exchange them.
const codePrefix = "API_"

// Remote returns the code and the text with which a node answers a call of another node; ok is false if no error in
// err's tree has a kind.
func Remote(err error) (code, text string, ok bool) {
	var known Error
	if !errors.As(err, &known) {
		return "", "", false
	}
	return codePrefix + strings.ToUpper(string(known.Kind)), known.Error(), true
}

// FromRemote returns the error that a node answered with that code and text; nil if the code carries no kind.
func FromRemote(code, text string) error {
	name, ok := strings.CutPrefix(code, codePrefix)
	if !ok {
		return nil
	}
	return Error{Kind: Kind(strings.ToLower(name)), Err: errors.New(text)}
}

// Error is an error with a kind. Its text and the hint together are complete: what happened, why, and what to run next.
type Error struct {
	Kind   Kind
	Number int    // number of the message that administrators know (messages); 0: none
	Hint   string // the advice, for clients that show it apart; "": Err contains it
	Err    error
}

// Error returns the text of the wrapped error, and the hint in brackets.
func (e Error) Error() string {
	if e.Hint == "" {
		return e.Err.Error()
	}
	return e.Err.Error() + " (" + e.Hint + ")"
}

// Unwrap returns the wrapped error.
func (e Error) Unwrap() error { return e.Err }

// SQLState returns the SQLSTATE of the numbered message, otherwise that of the kind.
func (e Error) SQLState() string {
	if state, ok := messages[e.Number]; ok {
		return state
	}
	return e.Kind.SQLState()
}

// WithHint returns the error with advice on what to do.
func (e Error) WithHint(format string, a ...any) Error {
	e.Hint = fmt.Sprintf(format, a...)
	return e
}

// KindOf returns the kind of the first error in err's tree that has one; Ordinary if none has.
func KindOf(err error) Kind {
	var known Error
	if errors.As(err, &known) {
		return known.Kind
	}
	return Ordinary
}

// Usagef returns an error of a request that is malformed, or that names something that does not exist.
func Usagef(format string, a ...any) error { return Error{Kind: Usage, Err: fmt.Errorf(format, a...)} }

// Unhealthyf returns an error of a group or a node that is not well.
func Unhealthyf(format string, a ...any) error {
	return Error{Kind: Unhealthy, Err: fmt.Errorf(format, a...)}
}

// Refusedf returns an error of a request that could lose data or interrupt service.
func Refusedf(format string, a ...any) error {
	return Error{Kind: Refused, Err: fmt.Errorf(format, a...)}
}

// Numberedf returns the error of a numbered message: its number gives it its kind.
func Numberedf(number int, format string, a ...any) Error {
	return Error{Kind: KindOfState(StateOf(number)), Number: number, Err: fmt.Errorf(format, a...)}
}
