package console

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/admin/dialect"
)

// maxVariables is the maximum number of variables of a batch.
const maxVariables = 256

// script is a batch that is being run.
type script struct {
	s     *Session
	run   func(batch.Statement) error // executes a plain statement and passes its answer on
	tell  func(Result)                // passes on the answer to a statement of the control flow
	types map[string]string           // of the variables, as they were declared
}

// errReturn ends a batch.
var errReturn = fmt.Errorf("RETURN")

// compound runs a batch with variables and control flow, up to the first error. Its variables live as long as it.
func (s *Session) compound(ctx context.Context, text string, run func(batch.Statement) error, tell func(Result)) error {
	list, err := batch.Parse(text)
	if err != nil {
		return err
	}
	s.variables = map[string]dialect.Value{}
	defer func() { s.variables = nil }()
	x := &script{s: s, run: run, tell: tell, types: map[string]string{}}
	if err := x.statements(ctx, list); err != nil && err != errReturn { //nolint:errorlint // it is never wrapped
		return err
	}
	return nil
}

func (x *script) statements(ctx context.Context, list []batch.Statement) error {
	for _, st := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := x.statement(ctx, st); err != nil {
			return err
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
	case batch.Print:
		text, err := x.text(ctx, st.Text)
		if err == nil {
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
		value := v.Value
		if value == "" {
			value = "NULL"
		}
		values, _, err := x.row(ctx, "SELECT CAST(("+value+") AS "+v.Type+")", 1)
		if err != nil {
			return err
		}
		t, bad := dialect.TypeNamed(v.Type)
		if bad != nil {
			return Errorf(bad.State, "%s", bad.Message).WithHint(bad.Hint)
		}
		x.types[v.Name] = v.Type
		x.s.variables[v.Name] = valueOf(values[0], t)
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
			return Errorf("42704", "must declare the scalar variable \"@%s\"", v.Name)
		}
		list = append(list, "CAST(("+v.Value+") AS "+t+")")
	}
	values, found, err := x.row(ctx, "SELECT "+st.Prefix+" "+strings.Join(list, ", ")+" "+st.Text, len(list))
	if err != nil {
		return err
	}
	if found {
		for i, v := range st.Variables {
			x.s.variables[v.Name] = valueOf(values[i], x.s.variables[v.Name].Type)
		}
	}
	x.tell(Result{Tag: "SET"})
	return nil
}

func (x *script) choose(ctx context.Context, st batch.Statement) error {
	values, _, err := x.row(ctx, "SELECT CASE WHEN "+st.Text+" THEN 1 ELSE 0 END", 1)
	if err != nil {
		return err
	}
	branch := st.Else
	if values[0] == int64(1) {
		branch = st.Then
	}
	if len(branch) == 0 {
		x.tell(Result{Tag: "IF"})
	}
	return x.statements(ctx, branch)
}

// raise answers with a notice up to the severity 10, and with an error above.
func (x *script) raise(ctx context.Context, st batch.Statement) error {
	text, err := x.text(ctx, st.Text)
	if err != nil {
		return err
	}
	severity, err := x.text(ctx, st.Severity)
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(severity); err != nil || n > 10 {
		return Errorf("P0001", "%s", text)
	}
	x.tell(Result{Tag: "RAISERROR", Notices: []Notice{{"NOTICE", text}}})
	return nil
}

// text returns an expression as T-SQL prints it.
func (x *script) text(ctx context.Context, expression string) (string, error) {
	values, _, err := x.row(ctx, "SELECT CAST(("+expression+") AS nvarchar(4000))", 1)
	if err != nil || values[0] == nil {
		return "", err
	}
	return fmt.Sprint(values[0]), nil
}

// lastRow keeps the last row of a query.
type lastRow struct {
	columns int
	values  []any
	found   bool
	notes   []string
}

// Columns implements Rows.
func (r *lastRow) Columns(list []Column) error {
	if len(list) != r.columns {
		return Errorf("42601", "the query returns %d columns, and %d are expected", len(list), r.columns)
	}
	return nil
}

// Row implements Rows.
func (r *lastRow) Row(values []any) error {
	r.values, r.found = values, true
	return nil
}

// Notice implements Rows.
func (r *lastRow) Notice(text string) { r.notes = append(r.notes, text) }

// row returns the last row of a query, or as many NULL.
func (x *script) row(ctx context.Context, query string, columns int) ([]any, bool, error) {
	to := &lastRow{columns: columns}
	if _, err := x.s.run(ctx, query, nil, to); err != nil {
		return nil, false, err
	}
	if !to.found {
		to.values = make([]any, columns)
	}
	return to.values, to.found, nil
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
