package main

import (
	jsonbytes "bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coteriedb/coterie/internal/api"
	"github.com/coteriedb/coterie/internal/console"
	"github.com/coteriedb/coterie/internal/ddl"
)

// maxScript bounds a file of statements.
const maxScript = ddl.MaxText

func sqlCommand() *cobra.Command {
	var text, file string
	var asJSON, asCSV bool
	c := &cobra.Command{
		Use: "sql", GroupID: "group", Short: "Run availability-group statements and queries on the views",
		Long: `Runs statements on this node's console, as psql does on the database coterie of the listener, but through the node's private socket: it
needs no password and works whatever PostgreSQL does. Without -c and -f it reads statements from the terminal, or from standard input.

Statements are separated by semicolons, or by lines that hold GO alone. The first that fails ends it, with exit code 1.`,
		Example: `  coterie sql -c 'SELECT * FROM coterie.replicas'
  coterie sql -c "ALTER AVAILABILITY GROUP [orders] MODIFY REPLICA ON N'n1' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = (('n2','n3'),'n1')))"
  coterie sql -f group.sql --json`,
		Args: args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := client(c)
			if err != nil {
				return err
			}
			p := printer{c: c, json: asJSON, csv: asCSV}
			switch {
			case asJSON && asCSV:
				return usage("choose one of --json and --csv")
			case c.Flags().Changed("command") && file != "":
				return usage("choose one of -c and -f")
			case c.Flags().Changed("command"):
				return p.run(cl, text)
			case file == "" && term.IsTerminal(int(os.Stdin.Fd())):
				return p.interactive(cl)
			}
			script, err := readScript(c, file)
			if err != nil {
				return err
			}
			return p.run(cl, script)
		},
	}
	c.Flags().StringVarP(&text, "command", "c", "", "statements to run")
	c.Flags().StringVarP(&file, "file", "f", "", "file of statements to run; -: standard input")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one document for each statement")
	c.Flags().BoolVar(&asCSV, "csv", false, "print CSV with a heading")
	return c
}

func readScript(c *cobra.Command, file string) (string, error) {
	in := c.InOrStdin()
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", usage("%w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxScript+1))
	if len(b) > maxScript {
		return "", usage("the script has more than %d bytes", maxScript)
	}
	return string(b), err
}

// printer runs statements and prints what they answer.
type printer struct {
	c         *cobra.Command
	json, csv bool
}

// run executes every statement of a text.
func (p printer) run(cl *api.Client, text string) error {
	parts, err := ddl.Split(text)
	if err != nil {
		return codedError{exitUsage, err}
	}
	for _, part := range parts {
		r, err := ask(p.c, cl, part.Text)
		if err != nil {
			if len(parts) > 1 {
				err = fmt.Errorf("line %d: %w", part.Line, err)
			}
			return err
		}
		if err := p.print(r); err != nil {
			return err
		}
	}
	return nil
}

// ask runs one statement on this node's console.
func ask(c *cobra.Command, cl *api.Client, text string) (console.Result, error) {
	return askWithin(c.Context(), c, cl, text)
}

func askWithin(ctx context.Context, c *cobra.Command, cl *api.Client, text string) (console.Result, error) {
	var r console.Result
	a, err := cl.SQL(ctx, text)
	if err != nil {
		return r, noAgent(c, err)
	}
	if a.Error != nil {
		var bad console.Error
		if err := json.Unmarshal(a.Error, &bad); err != nil {
			return r, err
		}
		code := exitError
		switch bad.State {
		case ddl.StateSyntax:
			code = exitUsage
		case "57P03":
			code = exitUnhealthy
		case ddl.StateWrongState:
			code = exitRefused
		}
		return r, codedError{code, &bad}
	}
	d := json.NewDecoder(jsonbytes.NewReader(a.Result))
	d.UseNumber() // positions have more digits than a float
	return r, d.Decode(&r)
}

func (p printer) print(r console.Result) error {
	for _, n := range r.Notices {
		say(p.c, "%s: %s", n.Severity, n.Message)
	}
	w := p.c.OutOrStdout()
	switch {
	case p.json:
		return p.printJSON(r)
	case r.Columns == nil:
		say(p.c, "%s", r.Tag)
		return nil
	case p.csv:
		out := csv.NewWriter(w)
		_ = out.Write(headings(r))
		for _, row := range r.Rows {
			_ = out.Write(cells(row))
		}
		out.Flush()
		return out.Error()
	}
	t := tabwriter.NewWriter(w, 2, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, strings.Join(headings(r), "\t"))
	for _, row := range r.Rows {
		_, _ = fmt.Fprintln(t, strings.Join(cells(row), "\t"))
	}
	return t.Flush()
}

// printJSON prints rows as objects.
func (p printer) printJSON(r console.Result) error {
	if r.Columns == nil {
		return printJSON(p.c, map[string]any{"statement": r.Tag, "notices": r.Notices})
	}
	rows := make([]map[string]any, 0, len(r.Rows))
	for _, row := range r.Rows {
		m := map[string]any{}
		for i, v := range row {
			m[r.Columns[i].Name] = v
		}
		rows = append(rows, m)
	}
	return printJSON(p.c, rows)
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

// interactive reads statements from a terminal, with history and completion of the views' names.
func (p printer) interactive(cl *api.Client) error {
	fd := int(os.Stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return err
	}
	defer func() { _ = term.Restore(fd, old) }()
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{os.Stdin, os.Stdout}, "coterie=> ")
	if w, h, err := term.GetSize(fd); err == nil {
		_ = t.SetSize(w, h)
	}
	history := loadHistory()
	t.History = history
	words := completions(p.c, cl)
	t.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) { return complete(words, line, pos, key) }
	p.c.SetOut(t)
	p.c.SetErr(t)
	pending := ""
	for {
		line, err := t.ReadLine()
		if errors.Is(err, io.EOF) || pending == "" && slices.Contains([]string{`\q`, "quit", "exit"}, strings.TrimSpace(line)) {
			return nil
		}
		if err != nil {
			return err
		}
		pending += line + "\n"
		if whole := strings.TrimSpace(pending); whole != "" && !strings.HasSuffix(whole, ";") && !strings.EqualFold(strings.TrimSpace(line), "GO") {
			t.SetPrompt("coterie-> ")
			continue
		}
		if err := p.run(cl, pending); err != nil {
			_, _ = fmt.Fprintln(t, "ERROR: "+err.Error())
		}
		pending = ""
		t.SetPrompt("coterie=> ")
	}
}

// completions are the words that Tab completes: the language's and the views' names.
func completions(c *cobra.Command, cl *api.Client) []string {
	words := []string{"SELECT", "FROM", "WHERE", "ALTER AVAILABILITY GROUP", "EXPLAIN FAILOVER;", "VERIFY ROUTING;", "SCRIPT;", "FAILOVER", "MODIFY REPLICA ON"}
	for _, o := range ddl.Options() {
		words = append(words, o.Name)
	}
	r, err := ask(c, cl, "SELECT table_schema || '.' || table_name FROM information_schema.tables WHERE table_schema IN ('sys', 'coterie')")
	if err == nil {
		for _, row := range r.Rows {
			words = append(words, fmt.Sprint(row[0]))
		}
	}
	return words
}

func complete(words []string, line string, pos int, key rune) (string, int, bool) {
	if key != '\t' {
		return "", 0, false
	}
	from := strings.LastIndexAny(line[:pos], " (,=") + 1
	typed := line[from:pos]
	var found string
	for _, w := range words {
		if typed == "" || len(w) < len(typed) || !strings.EqualFold(w[:len(typed)], typed) {
			continue
		}
		if found == "" {
			found = w
			continue
		}
		n := 0
		for n < len(found) && n < len(w) && strings.EqualFold(found[n:n+1], w[n:n+1]) {
			n++
		}
		found = found[:n]
	}
	if len(found) <= len(typed) {
		return "", 0, false
	}
	return line[:from] + found + line[pos:], from + len(found), true
}

// history keeps what was typed in a file of the user's, the last thousand lines.
type history struct {
	path  string
	lines []string // oldest first
}

const historyKept = 1000

func loadHistory() *history {
	h := &history{}
	home, err := os.UserHomeDir()
	if err != nil {
		return h
	}
	h.path = filepath.Join(home, ".coterie_history")
	if b, err := os.ReadFile(h.path); err == nil {
		h.lines = strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	return h
}

// Add keeps a line.
func (h *history) Add(entry string) {
	if strings.TrimSpace(entry) == "" || len(h.lines) > 0 && h.lines[len(h.lines)-1] == entry {
		return
	}
	h.lines = append(h.lines, entry)
	h.lines = h.lines[max(0, len(h.lines)-historyKept):]
	if h.path != "" {
		_ = os.WriteFile(h.path, []byte(strings.Join(h.lines, "\n")+"\n"), 0o600) // a convenience
	}
}

// Len returns how many lines are kept.
func (h *history) Len() int { return len(h.lines) }

// At returns a line, 0 being the newest.
func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }
