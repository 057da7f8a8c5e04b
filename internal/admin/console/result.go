package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/admin/dialect"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Type is the OID of a PostgreSQL type.
type Type uint32

// The types of the console. Their values are bool, int64, float64, string and time.Time; nil is NULL.
const (
	Bool        Type = 16
	Int8        Type = 20
	Int4        Type = 23
	Text        Type = 25
	OID         Type = 26
	Float8      Type = 701
	Timestamptz Type = 1184
	UUID        Type = 2950
	Date        Type = 1082 // a string, 2026-11-21
	Numeric     Type = 1700 // a string, 1.50
)

// Column is one column of a result.
type Column struct {
	Name string `json:"name"`
	Type Type   `json:"type"`
}

// Notice is a message that accompanies a result.
type Notice struct {
	Severity string `json:"severity"` // NOTICE or WARNING
	Message  string `json:"message"`
}

// Result is the answer to one statement.
type Result struct {
	Columns []Column `json:"columns,omitempty"` // nil: the statement returns no rows
	Rows    [][]any  `json:"rows,omitempty"`
	Tag     string   `json:"tag"`
	Notices []Notice `json:"notices,omitempty"`
	Next    []Result `json:"next,omitempty"` // of the further statements of a batch
}

// MarshalJSON writes the numbers that JSON does not have as texts; see Finite.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	r.Rows = Finite(r.Rows)
	return json.Marshal(plain(r))
}

// Finite returns the rows with the numbers that JSON does not have, such as infinity, as PostgreSQL's texts of them.
func Finite(rows [][]any) [][]any {
	out := rows
	for i, row := range rows {
		if !slices.ContainsFunc(row, notInJSON) {
			continue
		}
		if &out[0] == &rows[0] {
			out = slices.Clone(rows)
		}
		out[i] = slices.Clone(row)
		for k, v := range row {
			if notInJSON(v) {
				out[i][k] = string(encodeText(v, Float8))
			}
		}
	}
	return out
}

// notInJSON reports whether a value is a number that JSON does not have.
func notInJSON(v any) bool {
	x, is := v.(float64)
	return is && (math.IsNaN(x) || math.IsInf(x, 0))
}

// Rows receives the rows of a query. An error of a method ends the query, which returns it.
type Rows interface {
	Columns(list []Column) error // before the first row; once
	Row(values []any) error      // the slice is the receiver's
	Notice(text string)          // of a clause that has no effect; before the columns
}

// whole keeps an answer of at most most bytes; 0: of any size.
type whole struct {
	Result
	noted       []Notice
	bytes, most int
}

// Columns implements Rows.
func (k *whole) Columns(list []Column) error {
	k.Result = Result{Columns: list, Rows: [][]any{}, Tag: "SELECT", Notices: k.noted}
	return nil
}

// Notice implements Rows.
func (k *whole) Notice(text string) { k.noted = append(k.noted, Notice{"NOTICE", text}) }

// Row implements Rows.
func (k *whole) Row(values []any) error {
	k.bytes += 24
	for _, v := range values {
		k.bytes += sizeOf(v)
	}
	if k.most > 0 && k.bytes > k.most {
		return Errorf("54000", "the rows that a session keeps have more than %d bytes", maxKept).WithHint("close portals, or fetch all rows at once: those are not kept")
	}
	k.Rows = append(k.Rows, values)
	return nil
}

// sizeOf returns about how many bytes a value takes.
func sizeOf(v any) int {
	if s, ok := v.(string); ok {
		return 16 + len(s)
	}
	return 16
}

// Error is the error of a statement as a client receives it.
type Error struct {
	State    string `json:"state"`            // SQLSTATE
	Number   int    `json:"number,omitempty"` // number of the availability-group message; 0: none
	Message  string `json:"message"`
	Detail   string `json:"detail,omitempty"`
	Hint     string `json:"hint,omitempty"`
	Position int    `json:"position,omitempty"` // in characters of the statement, from 1; 0: unknown
}

// Error returns the message, and the hint in brackets.
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

// Errorf returns an error with that SQLSTATE.
func Errorf(state, format string, a ...any) *Error {
	return &Error{State: state, Message: fmt.Sprintf(format, a...)}
}

// WithHint adds advice on what to do instead.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// AsError returns any error as a client receives it. Its position counts from the beginning of the statement.
func AsError(err error) *Error {
	var known *Error
	var refused *ddl.Error
	var kind fail.Error
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
	case errors.As(err, &kind):
		return &Error{State: kind.SQLState(), Number: kind.Number, Message: kind.Err.Error(), Hint: kind.Hint}
	case errors.Is(err, context.DeadlineExceeded):
		return Errorf("57014", "the statement took too long: %v", err)
	case errors.Is(err, context.Canceled):
		return Errorf("57P01", "the node is stopping")
	}
	return Errorf(fail.Ordinary.SQLState(), "%s", strings.TrimSpace(err.Error()))
}

// Principal is the user of a session, and where its statements come from.
type Principal struct {
	User string
	May  ddl.Privilege
	Via  Via
	From string // the client's address; "" where there is none

	Reads string // what a statement that changes something is refused with: where to send it instead; "": it needs its role
}

// Via is the way by which a statement came.
type Via string

// The ways: a session of the database coterie, the HTTP API, and the management socket of the node.
const (
	ViaSQL    Via = "SQL"
	ViaAPI    Via = "API"
	ViaSocket Via = "CLI"
)

// Question is a query with the arguments of its parameters and the variables that it may name.
type Question struct {
	SQL       string
	Args      []any
	Variables map[string]dialect.Value
}

// Backend executes the statements of sessions. Its methods may be called by many goroutines at once.
type Backend interface {
	// Execute runs a statement of the availability-group language for the principal, whose privilege has been checked.
	Execute(ctx context.Context, who Principal, s ddl.Statement) (Result, error)
	// Denied is told of a statement that was refused since the principal has not the privilege. It does not block.
	Denied(who Principal, s ddl.Statement, err *Error)
	// Describe returns the columns and the parameters' types of a query without running it. The types in given are the
	// client's; 0: the client left it open.
	Describe(ctx context.Context, who Principal, sql string, given []Type) (columns []Column, params []Type, err error)
	// Query runs a query on the views and sends its rows as they come.
	Query(ctx context.Context, who Principal, q Question, to Rows) error
	// Version returns PostgreSQL's version in this group, as server_version shows it.
	Version() string
}

// How old the answer about a role may be for a statement that changes nothing, and how long a role may take to be
// looked up.
const (
	lookEvery = time.Minute
	lookTime  = 7 * time.Second
)

// Look returns what a session's role may do now, MayNothing if it may not log in any more. last is what it had, which
// counts where no role can change: the group has no primary, and no replica can be asked. An error means that none
// could be asked otherwise.
type Look func(ctx context.Context, last ddl.Privilege) (ddl.Privilege, error)

// renew looks the session's role up if the last answer is older than age. For a statement that acts age is 0, and it is
// refused if the role cannot be looked up.
func (s *Session) renew(ctx context.Context, age time.Duration) error {
	if s.look == nil {
		return nil
	}
	if time.Since(s.looked) >= age {
		ctx, cancel := context.WithTimeout(ctx, lookTime)
		may, err := s.look(ctx, s.who.May)
		cancel()
		switch {
		case err == nil:
			s.who.May, s.looked = may, time.Now()
		case age == 0:
			return Errorf("57P03", "the role cannot be looked up now, and without that nothing is changed").WithHint("Try again. coterie sql on a node needs no role.")
		}
	}
	if s.who.May < ddl.MayLook {
		return Errorf("42501", "role %q may not use the console any more", s.who.User)
	}
	return nil
}
