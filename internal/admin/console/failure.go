package console

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// raisedNumber is the number of an error that has none of its own, as RAISERROR gives it.
const raisedNumber = 50000

// failure is the error of a statement of a batch, with what T-SQL tells of it in a CATCH block.
type failure struct {
	err                     *Error
	number, severity, state int64
	line                    int // of the batch, from 1
}

// Error implements error.
func (f *failure) Error() string { return f.err.Error() }

// Unwrap returns the error as a client receives it.
func (f *failure) Unwrap() error { return f.err }

// failed returns the error of a statement as a failure. One that has been raised keeps what was said with it.
func failed(err error, line int) *failure {
	var known *failure
	if errors.As(err, &known) {
		if known.line == 0 {
			known.line = line
		}
		return known
	}
	e := AsError(err)
	number, severity := numberOf(e)
	return &failure{err: e, number: number, severity: severity, state: 1, line: line}
}

// numbers are the numbers and severities of SQL Server for errors that have none of their own, by their SQLSTATE and a
// part of their message.
var numbers = []struct {
	state, part      string
	number, severity int64
}{
	{"22012", "", 8134, 16},
	{"21000", "", 512, 16},
	{"42501", "", 229, 14},
	{"22P02", "integer", 245, 16},
	{"22P02", "to a time", 241, 16},
	{"22P02", "uniqueidentifier", 8169, 16},
	{"22P02", "", 8114, 16},
	{"22003", "datediff", 535, 16},
	{"22003", "to a time", 517, 16},
	{"22003", "", 8115, 16},
	{"42601", "", 102, 15},
	{"42P01", "", 208, 16},
	{"42703", "", 207, 16},
	{"42883", "", 195, 15},
	{"42704", "must declare", 137, 15},
}

// numberOf returns the number and the severity of an error in SQL Server.
func numberOf(e *Error) (number, severity int64) {
	if e.Number != 0 {
		return int64(e.Number), 16
	}
	for _, n := range numbers {
		if n.state == e.State && strings.Contains(e.Message, n.part) {
			return n.number, n.severity
		}
	}
	return raisedNumber, 16
}

// uncaught are the SQLSTATEs, or their beginnings, of errors that no CATCH gets: the end of the statement's time or of
// the session, what a limit refuses, and mistakes of this program.
var uncaught = []string{"57014", "57P01", "53300", "54", "XX"}

// caught reports whether TRY passes an error on to its CATCH. As in SQL Server it does not do so with mistakes of the
// text itself: its grammar, or a name that does not exist.
func (f *failure) caught() bool {
	e := f.err
	if slices.ContainsFunc(uncaught, func(s string) bool { return strings.HasPrefix(e.State, s) }) {
		return false
	}
	written := strings.HasPrefix(e.State, "42") && e.State != "42501" || e.State == ddl.StateNotSupported
	return e.Number != 0 || !written
}

// told are the functions of T-SQL about the error of a CATCH block, as queries find them among the variables.
func (f *failure) told() map[string]dialect.Value {
	whole := dialect.Type{Kind: dialect.Int, OID: uint32(Int4)}
	text := dialect.Type{Kind: dialect.Text}
	return map[string]dialect.Value{
		"error_number()": {Type: whole, V: f.number}, "error_severity()": {Type: whole, V: f.severity}, "error_state()": {Type: whole, V: f.state},
		"error_line()": {Type: whole, V: int64(f.line)}, "error_message()": {Type: text, V: f.err.Message}, "error_procedure()": {Type: text},
	}
}

// try runs a TRY block, and its CATCH block if an error of the first is caught.
func (x *script) try(ctx context.Context, st batch.Statement) error {
	before := x.s.tx
	err := x.statements(ctx, st.Then)
	var f *failure
	if !errors.As(err, &f) || !f.caught() || ctx.Err() != nil {
		return err
	}
	if x.s.tx == txFailed && before != txFailed { // T-SQL lets a transaction go on behind most errors
		x.s.tx = txOpen
		x.s.doomed = x.s.aborts
	}
	was := x.s.caught
	x.s.caught = f
	defer func() { x.s.caught = was }()
	x.s.counts(f.number, 0)
	x.tell(Result{Tag: "CATCH"}) // it also ends the rows of the statement that failed
	return x.statements(ctx, st.Else)
}

// throw raises an error, or once more the one that was caught.
func (x *script) throw(ctx context.Context, st batch.Statement) error {
	if st.Number == "" {
		again := *x.s.caught
		return &again
	}
	number, err := x.whole(ctx, st.Number)
	if err != nil {
		return err
	}
	if number == nil || *number < raisedNumber || *number > 1<<31-1 {
		return Errorf("22023", "the error number of THROW is outside of the range from 50000 to 2147483647")
	}
	state, err := x.whole(ctx, st.State)
	if err != nil {
		return err
	}
	if state == nil || *state < 0 || *state > 255 {
		return Errorf("22023", "the state of THROW is outside of the range from 0 to 255")
	}
	text, err := x.text(ctx, st.Text)
	if err != nil {
		return err
	}
	bare := strings.ReplaceAll(text, "%%", "")
	if strings.Contains(bare, "%") {
		return Errorf("22023", "the message of THROW has a percent sign alone").WithHint("%% stands for a percent sign; RAISERROR has places for values")
	}
	e := Errorf("P0001", "%s", cut(strings.ReplaceAll(text, "%%", "%")))
	e.Number = int(*number)
	return &failure{err: e, number: *number, severity: 16, state: *state}
}

// whole returns the value of an expression as a whole number; nil: it is NULL.
func (x *script) whole(ctx context.Context, expression string) (*int64, error) {
	values, _, err := x.row(ctx, "SELECT "+cast(expression, "bigint"), 1)
	if err != nil {
		return nil, err
	}
	n, ok := values[0].(int64)
	if !ok {
		return nil, nil
	}
	return &n, nil
}

// values returns the variables that a query may name: those of the batch, and what T-SQL tells of the last statement,
// of the transaction and of the error that was caught.
func (s *Session) values() map[string]dialect.Value {
	whole := dialect.Type{Kind: dialect.Int, OID: uint32(Int4)}
	out := maps.Clone(s.variables)
	if out == nil {
		out = map[string]dialect.Value{}
	}
	open, state := int64(0), int64(0)
	if s.tx != txIdle {
		open, state = 1, 1
	}
	if s.doomed || s.tx == txFailed {
		state = -1
	}
	out["@@trancount"], out["xact_state()"] = dialect.Value{Type: whole, V: open}, dialect.Value{Type: whole, V: state}
	out["@@error"] = dialect.Value{Type: whole, V: s.lastError}
	if s.lastRows != nil {
		out["@@rowcount"] = dialect.Value{Type: whole, V: *s.lastRows}
	}
	if s.caught != nil {
		maps.Copy(out, s.caught.told())
	}
	return out
}

// counts notes the number of the error of a statement, 0 if it had none, and its rows.
func (s *Session) counts(number, rows int64) { s.lastError, s.lastRows = number, &rows }

// executed notes the outcome of a statement.
func (s *Session) executed(err error, rows int) {
	number := int64(0)
	if err != nil {
		number, _ = numberOf(AsError(err))
	}
	s.counts(number, int64(rows))
}
