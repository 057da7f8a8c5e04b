package ddl

import (
	"fmt"
	"strings"
)

// Pos is a place in a text: Line and Column count from 1, Column and Offset in characters, Offset from 0.
type Pos struct{ Line, Column, Offset int }

// String prints the place as line:column.
func (p Pos) String() string { return fmt.Sprintf("%d:%d", p.Line, p.Column) }

// SQLSTATEs of this package's errors.
const (
	StateSyntax       = "42601"
	StateNotSupported = "0A000"
	StateUndefined    = "42704"
	StateDuplicate    = "42710"
	StateInvalid      = "22023"
	StateWrongState   = "55000"
)

// Numbers of messages that say that a text ends too soon: more of it could make it whole.
const (
	NumberUnclosedQuote   = 105
	NumberUnclosedComment = 113
)

// Error is why a statement was refused. Nothing was changed.
type Error struct {
	Pos     Pos    // zero: of the whole statement
	Number  int    // of the availability-group message that says the same; 0: there is none
	State   string // SQLSTATE
	Message string
	Hint    string // what to do instead
}

// Error prints the message with its number and place, then the hint.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Number != 0 {
		fmt.Fprintf(&b, "Msg %d: ", e.Number)
	}
	if e.Pos.Line != 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", e.Pos.Line, e.Pos.Column)
	}
	b.WriteString(e.Message)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Errorf returns an error of that message number and SQLSTATE; it has no place.
func Errorf(number int, state, format string, a ...any) *Error {
	return &Error{Number: number, State: state, Message: fmt.Sprintf(format, a...)}
}

// WithHint adds what to do instead.
func (e *Error) WithHint(format string, a ...any) *Error {
	e.Hint = fmt.Sprintf(format, a...)
	return e
}

// errorf returns an error of that message number and SQLSTATE at the place.
func (p Pos) errorf(number int, state, format string, a ...any) *Error {
	e := Errorf(number, state, format, a...)
	e.Pos = p
	return e
}
