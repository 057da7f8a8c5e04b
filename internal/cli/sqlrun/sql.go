package sqlrun

import (
	jsonbytes "bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/batch"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// maxScript is the largest script, in bytes.
const maxScript = ddl.MaxText

// SQL returns the command sql, which runs statements on the console of this node.
func SQL() *cobra.Command {
	var text, file string
	var asJSON, asCSV bool
	c := &cobra.Command{
		Use: "sql", GroupID: "group", Short: "Run availability-group statements and queries on the views",
		Long: `Runs statements on this node's console, as psql does on the database coterie of the listener, but through the node's private socket: it
needs no password and works whatever PostgreSQL does. Without -c and -f it reads statements from the terminal, or from standard input.

Statements are separated by semicolons, or by lines that hold GO alone. The first that fails ends it; the exit code tells why.
A run is one session: SET and a transaction hold until its end. Variables of DECLARE end with their batch, which is at GO.`,
		Example: `  coterie sql -c 'SELECT * FROM coterie.replicas'
  coterie sql -c "ALTER AVAILABILITY GROUP [orders] MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('n2','n3'),'n1')))"
  coterie sql -f group.sql --json`,
		Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			cl = cl.InSession()
			defer cl.Close()
			p := Printer{C: c, JSON: asJSON, csv: asCSV, names: true}
			switch {
			case asJSON && asCSV:
				return fail.Usagef("choose one of --json and --csv")
			case c.Flags().Changed("command") && file != "":
				return fail.Usagef("choose one of -c and -f")
			case c.Flags().Changed("command"):
				return p.Run(c.Context(), cl, text)
			case file == "" && term.IsTerminal(int(os.Stdin.Fd())):
				return p.interactive(cl)
			}
			script, err := readScript(c, file)
			if err != nil {
				return err
			}
			return p.Run(c.Context(), cl, script)
		},
	}
	c.Flags().StringVarP(&text, "command", "c", "", "statements to run")
	c.Flags().StringVarP(&file, "file", "f", "", "file of statements to run; -: standard input")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one document for each statement")
	c.Flags().BoolVar(&asCSV, "csv", false, "print CSV with a heading")
	return c
}

// readScript reads the file, or standard input if file is empty or "-".
func readScript(c *cobra.Command, file string) (string, error) {
	in := c.InOrStdin()
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", unreadable(err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxScript+1))
	switch {
	case len(b) > maxScript:
		return "", fail.Usagef("the script has more than %d bytes; split it, and run the parts one after the other with -f", maxScript)
	case err != nil && file != "" && file != "-": // a directory
		return "", unreadable(err)
	}
	return string(b), err
}

// unreadable returns the error of a file of statements that cannot be read.
func unreadable(err error) error {
	return fail.Usagef("the statements of -f cannot be read: %w; nothing was run. Name a file that you may read, or - for standard input", err)
}

// Printer runs statements and prints their results.
type Printer struct {
	C         *cobra.Command
	JSON, csv bool
	names     bool // tables are headed by the names of columns, as a statement can use them, and not by words
	// Empty is said in place of a table without rows; "": the heading is printed.
	Empty string
	// ForJSON is the name of a column that a table leaves out; "": it has all.
	ForJSON string
}

// ForJSON is the name of the column that the commands print with --json only: whether a value is hidden, which a table
// has in the value's place.
const ForJSON = "hidden"

// Run executes the statements of a text and prints their results. It stops at the first error.
func (p Printer) Run(ctx context.Context, cl *api.Client, text string) error {
	parts, err := batch.Split(text)
	if err != nil {
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	several := len(parts) > 1
	if i := slices.IndexFunc(parts, func(part ddl.Part) bool { return console.Unreadable(part.Text) }); i >= 0 {
		parts = parts[i : i+1] // the node says what is wrong with it, and nothing is done
	}
	for _, part := range parts {
		r, err := AskWithin(ctx, p.C, cl, part.Text)
		for _, r := range append([]console.Result{r}, r.Next...) {
			if err != nil && r.Tag == "" { // nothing was done before the error
				break
			}
			if err := p.Print(r); err != nil {
				return err
			}
		}
		if err != nil && several {
			err = fmt.Errorf("line %d: %w", part.Line, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Ask runs one statement that a command has written on this node's console. The text of its error has no message
// number: numbers are for those who write statements.
func Ask(c *cobra.Command, cl *api.Client, text string) (console.Result, error) {
	r, err := AskWithin(c.Context(), c, cl, text)
	var failed fail.Error
	var refused *console.Error
	if errors.As(err, &failed) && errors.As(err, &refused) {
		plain := *refused
		plain.Number = 0
		failed.Err = &plain
		return r, failed
	}
	return r, err
}

// Query makes c print the result of a query of the console, or say that there is none. The notices of more come behind
// its own.
func Query(c *cobra.Command, query, none string, more ...func(*cobra.Command, *api.Client, console.Result) []console.Notice) *cobra.Command {
	var asJSON bool
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		cl, err := cli.Client(c)
		if err != nil {
			return err
		}
		r, err := Ask(c, cl, query)
		if err != nil {
			return err
		}
		for _, notices := range more {
			r.Notices = append(r.Notices, notices(c, cl, r)...)
		}
		return Printer{C: c, JSON: asJSON, Empty: none, ForJSON: ForJSON}.Print(r)
	}
	return c
}

// Silent returns a warning for each replica that is not in the first column of told, where any is: says has %s for its
// name.
func Silent(c *cobra.Command, cl *api.Client, told console.Result, says string) (out []console.Notice) {
	st, err := cl.Status(c.Context())
	if err != nil || len(told.Rows) == 0 {
		return nil
	}
	for _, r := range st.Replicas {
		is := slices.ContainsFunc(told.Rows, func(row []any) bool { return fmt.Sprint(row[0]) == string(r.Name) })
		if !is && r.Mode != ag.ConfigurationOnly {
			out = append(out, console.Notice{Severity: "WARNING", Message: fmt.Sprintf(says, r.Name)})
		}
	}
	return out
}

// Alter runs a clause of ALTER AVAILABILITY GROUP on the group of this node. With noWait it returns when the statement
// is accepted.
func Alter(c *cobra.Command, cl *api.Client, clause string, noWait bool) (console.Result, error) {
	s, err := cl.Status(c.Context())
	if err != nil {
		return console.Result{}, cli.NoAgent(c, err)
	}
	if noWait {
		clause += " WITH NOWAIT"
	}
	return Ask(c, cl, "ALTER AVAILABILITY GROUP "+ddl.Brackets(s.Group)+" "+clause)
}

// AskWithin is Ask with a context other than the command's. A refused statement is a fail.Error around a console.Error;
// of a batch the result is then that of the statements before it.
func AskWithin(ctx context.Context, c *cobra.Command, cl *api.Client, text string) (console.Result, error) {
	var r console.Result
	a, err := cl.SQL(ctx, text)
	if err != nil {
		return r, cli.NoAgent(c, err)
	}
	if a.Result != nil {
		d := json.NewDecoder(jsonbytes.NewReader(a.Result))
		d.UseNumber() // positions have more digits than a float
		if err := d.Decode(&r); err != nil {
			return r, err
		}
	}
	if a.Error != nil {
		var bad console.Error
		if err := json.Unmarshal(a.Error, &bad); err != nil {
			return r, err
		}
		return r, fail.Error{Kind: fail.KindOfState(bad.State), Number: bad.Number, Err: &bad}
	}
	return r, nil
}

// Print prints a result and its notices: as a table, CSV or JSON.
func (p Printer) Print(r console.Result) error {
	for _, n := range r.Notices {
		cli.Say(p.C, "%s: %s", n.Severity, n.Message)
	}
	switch {
	case p.JSON:
		return p.printJSON(r)
	case r.Columns == nil:
		cli.Say(p.C, "%s", r.Tag)
		return nil
	case len(r.Rows) == 0 && p.Empty != "":
		cli.Say(p.C, "%s", p.Empty)
		return nil
	case p.csv:
		out := csv.NewWriter(cli.Data(p.C))
		_ = out.Write(headings(r))
		for _, row := range r.Rows {
			_ = out.Write(cells(row))
		}
		out.Flush()
		return out.Error()
	}
	r = without(r, p.ForJSON)
	t := tabwriter.NewWriter(cli.Out(p.C), 2, 8, 2, ' ', 0)
	heading := row(headings(r))
	if !p.names {
		heading = strings.ToUpper(strings.ReplaceAll(heading, "_", " "))
	}
	_, _ = fmt.Fprintln(t, heading)
	for _, values := range r.Rows {
		_, _ = fmt.Fprintln(t, row(cells(values)))
	}
	return t.Flush()
}

// row returns the line of a table. A value with a line break or a tab stays in its cell.
func row(values []string) string {
	for i, v := range values {
		values[i] = cli.Cell(v)
	}
	return strings.Join(values, "\t")
}

// without returns the result without the column of that name, if it has one.
func without(r console.Result, name string) console.Result {
	i := slices.IndexFunc(r.Columns, func(c console.Column) bool { return c.Name == name })
	if i < 0 {
		return r
	}
	r.Columns, r.Rows = slices.Delete(slices.Clone(r.Columns), i, i+1), slices.Clone(r.Rows)
	for j, row := range r.Rows {
		r.Rows[j] = slices.Delete(slices.Clone(row), i, i+1)
	}
	return r
}

// printJSON prints the rows as objects.
func (p Printer) printJSON(r console.Result) error {
	if r.Columns == nil {
		return cli.PrintJSON(p.C, map[string]any{"statement": r.Tag, "notices": r.Notices})
	}
	rows, err := Objects(r)
	if err != nil {
		return err
	}
	return cli.PrintJSON(p.C, rows)
}

// Objects returns the rows of a result as objects of JSON, by the names of the columns.
func Objects(r console.Result) ([]map[string]any, error) {
	names := map[string]bool{}
	for _, c := range r.Columns {
		if names[c.Name] {
			return nil, fail.Usagef("two columns of the result are named %s, and an object of JSON has one: give them names with AS", c.Name)
		}
		names[c.Name] = true
	}
	rows := make([]map[string]any, 0, len(r.Rows))
	for _, row := range r.Rows {
		m := map[string]any{}
		for i, v := range row {
			m[r.Columns[i].Name] = v
		}
		rows = append(rows, m)
	}
	return rows, nil
}

func headings(r console.Result) []string {
	var out []string
	for _, c := range r.Columns {
		out = append(out, c.Name)
	}
	return out
}

func cells(row []any) []string {
	var out []string
	for _, v := range row {
		switch x := v.(type) {
		case nil:
			out = append(out, "")
		case float64:
			out = append(out, strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.6f", x), "0"), "."))
		default:
			out = append(out, fmt.Sprint(x))
		}
	}
	return out
}
