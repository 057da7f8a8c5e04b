package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// Limits of a batch.
const (
	maxVariables = 256
	maxTurns     = 1000 // of all its loops together
)

// script is a batch that is being run.
type script struct {
	s     *Session
	run   func(batch.Statement) error // executes a plain statement and passes its answer on
	tell  func(Result)                // passes on the answer to a statement of the control flow
	types map[string]string           // of the variables, as they were declared
	turns int                         // of all loops so far
	began time.Time
}

// errReturn ends a batch, errBreak a loop and errContinue a turn of it.
var (
	errReturn   = errors.New("RETURN")
	errBreak    = errors.New("BREAK")
	errContinue = errors.New("CONTINUE")
)

// compound runs a batch with variables and control flow, up to the first error. Its variables live as long as it.
func (s *Session) compound(ctx context.Context, text string, run func(batch.Statement) error, tell func(Result)) error {
	list, err := batch.Parse(text)
	if err != nil {
		return err
	}
	if bad, err := unreadable(list); err != nil {
		return err
	} else if bad != nil {
		return run(*bad) // which fails before it does anything
	}
	s.variables = map[string]dialect.Value{}
	defer func() { s.variables = nil }()
	ctx, stop := s.interruptible(ctx)
	interrupt := s.interrupt
	s.interrupt = nil // between two statements, too, a request to cancel is for the batch
	defer func() { s.interrupt = interrupt; stop() }()
	x := &script{s: s, run: run, tell: tell, types: map[string]string{}, began: time.Now()}
	for i, st := range list {
		switch err := x.statements(ctx, []batch.Statement{st}); {
		case errors.Is(err, errReturn):
			if i == len(list)-1 { // nothing is left that it could skip
				tell(Result{Tag: "RETURN", Notices: []Notice{{"WARNING", "RETURN ends this text only: " + inPieces}}})
			}
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}

// Unreadable reports whether a part of a script has a mistake in its grammar, so that nothing of the script is run: a
// typing mistake must not leave half of it done.
func Unreadable(text string) bool {
	list, err := batch.Parse(text)
	if err == nil {
		var bad *batch.Statement
		bad, err = unreadable(list)
		return bad != nil || err != nil
	}
	return true
}

// unreadable returns the first statement, or the error of the first expression, that the grammars do not have.
func unreadable(list []batch.Statement) (*batch.Statement, error) {
	for i, st := range list {
		if st.Kind == batch.Plain && !readable(st.Text) {
			return &list[i], nil
		}
		for _, query := range queries(st) {
			var known *dialect.Error
			if errors.As(dialect.Check(query), &known) {
				return nil, Errorf(known.State, "%s", known.Message).WithHint(known.Hint)
			}
		}
		for _, inner := range [][]batch.Statement{st.Then, st.Else} {
			if bad, err := unreadable(inner); bad != nil || err != nil {
				return bad, err
			}
		}
	}
	return nil, nil
}

// queries returns what a statement of the control flow asks. An assignment has a type of its own in it, as those of the
// variables are known later.
func queries(st batch.Statement) (out []string) {
	switch st.Kind {
	case batch.If, batch.While:
		return []string{condition(st.Text)}
	case batch.Print:
		return []string{printed(st.Text)}
	case batch.Throw:
		if st.Number != "" {
			out = []string{value(st.Number), printed(st.Text), value(st.State)}
		}
	case batch.Raise:
		out = []string{printed(st.Text), value(st.Severity), value(st.State)}
		for _, v := range st.Values {
			out = append(out, value(v))
		}
		return out
	case batch.Declare:
		for _, v := range st.Variables {
			out = append(out, initial(v.Value, v.Type))
		}
	case batch.Assign:
		var list []string
		for _, v := range st.Variables {
			list = append(list, cast(v.Value, "int"))
		}
		return []string{assigned(st, list)}
	default:
	}
	return out
}

// readable reports whether a statement is one of the console by its grammar.
func readable(text string) bool {
	switch classify(text) {
	case kindLanguage:
		_, err := ddl.Parse(text)
		return err == nil
	case kindQuery:
		return dialect.Check(text) == nil
	case kindUnknown: // also a sign alone
		tokens, err := ddl.Tokens(text)
		return err == nil && len(tokens) == 0
	default:
		return true
	}
}

// condition returns the query that asks a condition, and printed that which asks a text.
func condition(text string) string { return "SELECT CASE WHEN (" + text + ") THEN 1 ELSE 0 END" }

func printed(text string) string { return "SELECT " + cast(text, "nvarchar(4000)") }

// initial returns the query that asks the first value of a variable, and assigned that which asks the values of an
// assignment.
func initial(value, t string) string { return "SELECT " + cast(cmp.Or(value, "NULL"), t) }

func assigned(st batch.Statement, values []string) string {
	return "SELECT " + st.Prefix + " " + strings.Join(values, ", ") + " " + st.Text
}

func cast(value, t string) string { return "CAST((" + value + ") AS " + t + ")" }

// inPieces is for those whose client divides a script at its semicolons.
const inPieces = "psql -f sends a script in pieces, one for each semicolon; coterie sql -f and psql -c send it whole"

func (x *script) statements(ctx context.Context, list []batch.Statement) error {
	for _, st := range list {
		if err := ended(ctx); err != nil {
			return err
		}
		err := x.statement(ctx, st)
		switch {
		case err == nil:
		case errors.Is(err, errReturn), errors.Is(err, errBreak), errors.Is(err, errContinue):
			return err
		default:
			f := failed(err, st.Line)
			x.s.counts(f.number, 0)
			return f
		}
	}
	return nil
}

func (x *script) statement(ctx context.Context, st batch.Statement) error {
	switch st.Kind {
	case batch.Declare:
		return x.declare(ctx, st)
	case batch.Assign:
		return x.assign(ctx, st)
	case batch.If:
		return x.choose(ctx, st)
	case batch.While:
		return x.repeat(ctx, st)
	case batch.Break:
		return errBreak
	case batch.Continue:
		return errContinue
	case batch.Try:
		return x.try(ctx, st)
	case batch.Throw:
		return x.throw(ctx, st)
	case batch.Print:
		text, err := x.text(ctx, st.Text)
		if err == nil {
			x.s.counts(0, 0)
			x.tell(Result{Tag: "PRINT", Notices: []Notice{{"NOTICE", text}}})
		}
		return err
	case batch.Raise:
		return x.raise(ctx, st)
	case batch.Return:
		return errReturn
	default:
		return x.run(st)
	}
}

func (x *script) declare(ctx context.Context, st batch.Statement) error {
	for _, v := range st.Variables {
		switch strings.ToLower(v.Type) { // without a length it is 1 in DECLARE, and 30 in CAST
		case "varchar", "nvarchar", "char", "nchar":
			v.Type += "(1)"
		}
		if _, twice := x.types[v.Name]; twice {
			return Errorf("42710", "the variable name @%s has already been declared", v.Name)
		}
		if len(x.types) >= maxVariables {
			return Errorf("54000", "a batch has at most %d variables", maxVariables)
		}
		values, _, err := x.row(ctx, initial(v.Value, v.Type), 1)
		if err != nil {
			return err
		}
		t, bad := dialect.TypeNamed(v.Type)
		if bad != nil {
			return Errorf(bad.State, "%s", bad.Message).WithHint(bad.Hint)
		}
		x.types[v.Name] = v.Type
		x.s.variables[v.Name] = valueOf(values[0], t)
		if v.Value != "" {
			x.s.counts(0, 1)
		}
	}
	x.tell(Result{Tag: "DECLARE"})
	return nil
}

// assign sets variables to the values of the last row. Without a row they keep theirs.
func (x *script) assign(ctx context.Context, st batch.Statement) error {
	var list []string
	for _, v := range st.Variables {
		t, ok := x.types[v.Name]
		if !ok {
			return Errorf("42704", "must declare the scalar variable \"@%s\"", v.Name).WithHint(dialect.LifeOfVariables)
		}
		list = append(list, cast(v.Value, t))
	}
	values, rows, err := x.row(ctx, assigned(st, list), len(list))
	if err != nil {
		return err
	}
	x.s.counts(0, rows)
	if rows > 0 {
		for i, v := range st.Variables {
			x.s.variables[v.Name] = valueOf(values[i], x.s.variables[v.Name].Type)
		}
	}
	x.tell(Result{Tag: "SET"})
	return nil
}

func (x *script) choose(ctx context.Context, st batch.Statement) error {
	holds, err := x.holds(ctx, st.Text)
	if err != nil {
		return err
	}
	branch := st.Else
	if holds {
		branch = st.Then
	}
	if len(branch) == 0 {
		x.tell(Result{Tag: "IF"})
	}
	return x.statements(ctx, branch)
}

// holds returns a condition.
func (x *script) holds(ctx context.Context, text string) (bool, error) {
	values, _, err := x.row(ctx, condition(text), 1)
	if err != nil {
		return false, err
	}
	x.s.counts(0, 0)
	return values[0] == int64(1), nil
}

// ended returns the error of a batch that its client has canceled, or whose session ends; nil: it goes on.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errInterrupted) {
		return Errorf("57014", "%v", errInterrupted)
	}
	return ctx.Err()
}

// repeat runs a loop.
func (x *script) repeat(ctx context.Context, st batch.Statement) error {
	for {
		if err := ended(ctx); err != nil {
			return err
		}
		holds, err := x.holds(ctx, st.Text)
		if err != nil {
			return err
		}
		if !holds {
			break
		}
		if x.turns++; x.turns > maxTurns {
			return Errorf("54000", "the loops of a batch have at most %d turns", maxTurns).WithHint("GO n repeats a batch; the shell waits and repeats as long as you want")
		}
		if most := x.s.limits.Operation; time.Since(x.began) > most {
			return Errorf("57014", "canceling the batch: its loops took longer than %v", most)
		}
		if err = x.statements(ctx, st.Then); errors.Is(err, errBreak) {
			break
		}
		if err != nil && !errors.Is(err, errContinue) {
			return err
		}
	}
	x.tell(Result{Tag: "WHILE"})
	return nil
}

// text returns an expression as T-SQL prints it.
func (x *script) text(ctx context.Context, expression string) (string, error) {
	values, _, err := x.row(ctx, printed(expression), 1)
	if err != nil || values[0] == nil {
		return "", err
	}
	return fmt.Sprint(values[0]), nil
}

// lastRow keeps the last row of a query.
type lastRow struct {
	columns int
	types   []Column
	values  []any
	rows    int64
	notes   []string
}

// Columns implements Rows.
func (r *lastRow) Columns(list []Column) error {
	if len(list) != r.columns {
		return Errorf("42601", "the query returns %d columns, and %d are expected", len(list), r.columns)
	}
	r.types = list
	return nil
}

// Row implements Rows.
func (r *lastRow) Row(values []any) error {
	r.values = values
	r.rows++
	return nil
}

// Notice implements Rows.
func (r *lastRow) Notice(text string) { r.notes = append(r.notes, text) }

// row returns the last row of a query, or as many NULL, and the number of its rows.
func (x *script) row(ctx context.Context, query string, columns int) ([]any, int64, error) {
	to := &lastRow{columns: columns}
	if _, err := x.s.run(ctx, query, nil, to); err != nil {
		return nil, 0, err
	}
	if to.rows == 0 {
		to.values = make([]any, columns)
	}
	return to.values, to.rows, nil
}

// valueOf returns a value of a result as that of a variable.
func valueOf(v any, t dialect.Type) dialect.Value {
	switch y := v.(type) {
	case bool:
		v = int64(0)
		if y {
			v = int64(1)
		}
	case time.Time:
		v = y.UTC().Format("2006-01-02 15:04:05.000000-07")
	case string:
		if t.Kind == dialect.Decimal {
			if f, err := strconv.ParseFloat(y, 64); err == nil {
				v = f
			}
		}
	}
	return dialect.Value{Type: t, V: v}
}

// procedures are procedures of SQL Server that scripts call, with what to use here.
var procedures = map[string]string{
	"sp_server_diagnostics": "SELECT * FROM coterie.policies, or coterie check on a node",
	"sp_who":                "SELECT * FROM sys.dm_exec_sessions", "sp_who2": "SELECT * FROM sys.dm_exec_sessions", "sp_whoisactive": "SELECT * FROM coterie.sessions",
	"sp_readerrorlog": "SELECT * FROM coterie.events", "xp_readerrorlog": "SELECT * FROM coterie.events", "sp_helpdb": "SELECT * FROM sys.databases",
	"sp_configure": "SELECT * FROM coterie.options and coterie.settings", "sp_executesql": "run the statement itself",
	"sp_help_job": "jobs are the operating system's", "sp_start_job": "jobs are the operating system's", "sp_update_job": "jobs are the operating system's",
	"sp_send_dbmail": "print the message, and have the shell send it", "xp_cmdshell": "use the shell", "sp_addlinkedserver": "connect to the other server",
	"sp_helptext": "docs/views.md describes the views", "sp_helpserver": "SELECT * FROM sys.availability_replicas",
}

// noProcedure returns the error of EXEC, by the name of the procedure.
func noProcedure(text string) error {
	tokens, err := ddl.Tokens(text)
	if err != nil {
		return err
	}
	name := ""
	for i := 1; i < len(tokens); i++ {
		if t := tokens[i]; t.Sign(".") || i > 1 && !tokens[i-1].Sign(".") && !tokens[i-1].Sign("=") {
			if !t.Sign(".") && !t.Sign("=") {
				break
			}
			continue
		}
		name = strings.ToLower(tokens[i].Text)
	}
	if strings.HasPrefix(name, "(") || name == "" {
		return Errorf("0A000", "EXEC of a text is not supported in the console").WithHint("run the statement itself")
	}
	hint, ok := procedures[name]
	if !ok {
		hint = "the console has no procedures: SELECT on the views sys.* and coterie.*, and availability-group statements"
	}
	return Errorf("0A000", "EXEC %.60s is not supported in the console", name).WithHint(hint)
}
