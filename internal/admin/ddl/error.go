package ddl

import (
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Pos is a place in a text: Line and Column count from 1, Column and Offset in characters, Offset from 0.
type Pos struct{ Line, Column, Offset int }

// String returns the place as line:column.
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

// Numbers of the messages about a text that is incomplete: with more text it could become a statement.
const (
	NumberUnclosedQuote   = 105
	NumberUnclosedComment = 113
)

// Error is the reason why a statement is refused. Nothing was changed.
type Error struct {
	Pos     Pos    // place of the error; zero: the whole statement
	Number  int    // number of the corresponding message, of those in package fail; 0: none corresponds
	State   string // SQLSTATE
	Message string
	Hint    string // what to do instead
}

// Error returns the message with its number and place, then the hint.
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

// errorf returns an error with that SQLSTATE, and without a place.
func errorf(state, format string, a ...any) *Error {
	return &Error{State: state, Message: fmt.Sprintf(format, a...)}
}

// WithHint adds advice on what to do instead.
func (e *Error) WithHint(format string, a ...any) *Error {
	e.Hint = fmt.Sprintf(format, a...)
	return e
}

// errorf returns an error at the place, with that SQLSTATE.
func (p Pos) errorf(state, format string, a ...any) *Error {
	e := errorf(state, format, a...)
	e.Pos = p
	return e
}

// messagef returns an error at the place, with that message number and the SQLSTATE of the message.
func (p Pos) messagef(number int, format string, a ...any) *Error {
	e := p.errorf(fail.StateOf(number), format, a...)
	e.Number = number
	return e
}
