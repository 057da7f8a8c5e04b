package console

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// Type is the OID of a PostgreSQL type.
type Type uint32

// The types of the console. Values of them are bool, int64, float64, string and time.Time; nil is NULL.
const (
	Bool        Type = 16
	Int8        Type = 20
	Int4        Type = 23
	Text        Type = 25
	OID         Type = 26
	Float8      Type = 701
	Timestamptz Type = 1184
	UUID        Type = 2950
)

// Column is one column of a result.
type Column struct {
	Name string `json:"name"`
	Type Type   `json:"type"`
}

// Notice is told beside a result.
type Notice struct {
	Severity string `json:"severity"` // NOTICE or WARNING
	Message  string `json:"message"`
}

// Result is the answer to one statement.
type Result struct {
	Columns []Column `json:"columns,omitempty"` // nil: it returns no rows
	Rows    [][]any  `json:"rows,omitempty"`
	Tag     string   `json:"tag"`
	Notices []Notice `json:"notices,omitempty"`
}

// Error is a statement's failure as a client sees it.
type Error struct {
	State    string `json:"state"`            // SQLSTATE
	Number   int    `json:"number,omitempty"` // of the availability-group message; 0: none
	Message  string `json:"message"`
	Detail   string `json:"detail,omitempty"`
	Hint     string `json:"hint,omitempty"`
	Position int    `json:"position,omitempty"` // in characters from 1; 0: not known
}

// Error prints the message, and the hint in brackets.
func (e *Error) Error() string {
	text := e.text()
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

func (e *Error) text() string {
	if e.Number != 0 {
		return fmt.Sprintf("Msg %d: %s", e.Number, e.Message)
	}
	return e.Message
}

// Errorf returns an error of that SQLSTATE.
func Errorf(state, format string, a ...any) *Error {
	return &Error{State: state, Message: fmt.Sprintf(format, a...)}
}

// WithHint adds what to do instead.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// asError turns any error into what a client is told. A place counts from the beginning of the statement.
func asError(err error) *Error {
	var known *Error
	var refused *ddl.Error
	switch {
	case errors.As(err, &known):
		out := *known
		return &out
	case errors.As(err, &refused):
		out := &Error{State: refused.State, Number: refused.Number, Message: refused.Message, Hint: refused.Hint}
		if refused.Pos.Line != 0 {
			out.Position = refused.Pos.Offset + 1
		}
		return out
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf("57014", "the statement took too long: %v", err)
	case errors.Is(err, context.Canceled):
		return Errorf("57P01", "the node is stopping")
	}
	return Errorf("XX000", "%s", strings.TrimSpace(err.Error()))
}

// Principal is who runs a session.
type Principal struct {
	User string
	May  ddl.Privilege
}

// Backend is what sessions talk to. Its methods are called from many goroutines at once.
type Backend interface {
	// Execute runs a statement of the availability-group language for the principal, whose privilege has been checked.
	Execute(ctx context.Context, who Principal, s ddl.Statement) (Result, error)
	// Describe returns the columns and the parameters' types of a query without running it; given are the types that the client
	// named, 0 where it named none.
	Describe(ctx context.Context, sql string, given []Type) (columns []Column, params []Type, err error)
	// Query runs a query on the views.
	Query(ctx context.Context, who Principal, sql string, args []any) (Result, error)
	// Version is PostgreSQL's version in this group, as server_version shows it.
	Version() string
}
