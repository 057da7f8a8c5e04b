package supportcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/support"
)

// perAnswer is how long one answer of the agent may take: a node that is ill must not keep the rest from being
// collected.
const perAnswer = 20 * time.Second

// result is what the command prints with --json.
type result struct {
	File  string         `json:"file"`
	Bytes int64          `json:"bytes"`
	Parts []support.Part `json:"parts"`
}

// Bundle returns the command support-bundle.
func Bundle() *cobra.Command {
	var output string
	var asJSON, statements bool
	c := &cobra.Command{
		Use: "support-bundle", GroupID: "node", Short: "Write one file with what somebody else needs to help with this node", Args: cli.Args(0, "no arguments"),
		Long: `Writes a tar.gz with what this node and its group are like: status, the explanation of the last failovers, every view, coterie.yaml, the
record and the marks on disk, the ends of the logs of agent, keeper and PostgreSQL, the version, and facts of the host. It needs no agent:
what only an agent knows is then missing, and README.txt in the archive says so. Run it on each node that is concerned.

Passwords, tokens, keys, connection strings' passwords and SCRAM verifiers are replaced by [removed], and the texts of statements in
PostgreSQL's log as well (--statements keeps those). Names of hosts, databases and roles, and addresses, stay. Look through the file before
you give it to somebody: a secret that your own names do not show as one cannot be recognised.

The file has at most 32 MB before it is compressed, can be read by its owner only, and is never written over another one.`,
		Example: "  coterie support-bundle\n  coterie support-bundle --output /tmp/n1.tar.gz\n  coterie support-bundle --output - | ssh helper 'cat > n1.tar.gz'",
		RunE: func(c *cobra.Command, _ []string) error {
			dir := cli.Node(c)
			if asJSON && output == "-" {
				return fail.Usagef("--json and --output - both write to standard output: choose one")
			}
			l, err := config.NewLayout(dir)
			if err != nil {
				return err
			}
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			r, err := write(c, cl, l, options{output, statements})
			if err != nil {
				return err
			}
			if asJSON {
				return cli.PrintJSON(c, r)
			}
			say(c, r)
			return nil
		},
	}
	c.Flags().StringVarP(&output, "output", "o", "", "file to write, - for standard output (default: coterie-NODE-TIME.tar.gz here)")
	c.Flags().BoolVar(&statements, "statements", false, "keep the texts of statements in PostgreSQL's log: they may have your data in them")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON: the file and its parts")
	return c
}

// options are those of the command.
type options struct {
	output     string
	statements bool
}

// write makes the file. A file that could not be completed is removed.
func write(c *cobra.Command, cl *api.Client, l config.Layout, o options) (result, error) {
	now := time.Now()
	name := "node"
	if cfg, err := config.Load(l.Dir); err == nil {
		name = cfg.Node
	}
	folder := fmt.Sprintf("coterie-%s-%s", name, now.UTC().Format("20060102T150405Z"))
	out, path := c.OutOrStdout(), o.output
	if path == "" {
		path = folder + ".tar.gz"
	}
	var f *os.File
	if path != "-" {
		var err error
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); errors.Is(err, os.ErrExist) {
			return result{}, fail.Usagef("%s exists and is not written over; name another file with --output FILE", path)
		} else if err != nil {
			return result{}, fmt.Errorf("write the bundle: %w; name another place with --output FILE", err)
		}
		out = f
	}
	b := support.NewBundle(out, folder, now)
	(&agent{c: c, cl: cl}).fill(b, l.Dir, o.statements)
	err := b.Close()
	r := result{File: path, Parts: b.Parts}
	if f != nil {
		if st, statErr := f.Stat(); statErr == nil {
			r.Bytes = st.Size()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(path)
		}
	}
	if err != nil {
		return r, fmt.Errorf("write the bundle: %w", err)
	}
	return r, nil
}

// fill adds everything, the most useful parts first: the last ones are cut when there is much.
func (a *agent) fill(b *support.Bundle, dir string, statements bool) {
	b.Host(dir)
	a.add(b, "status.json", func(ctx context.Context) (any, error) { return a.cl.Status(ctx) })
	if a.gone {
		b.Missing("explain.json and views", errors.New("no agent answers"))
	} else {
		a.add(b, "explain.json", func(ctx context.Context) (any, error) { return a.cl.Explain(ctx) })
		a.add(b, "decisions.json", func(ctx context.Context) (any, error) { return a.cl.Decisions(ctx) })
		a.views(b)
	}
	b.Node(dir, statements)
}

// agent is a node's agent that is asked.
type agent struct {
	c    *cobra.Command
	cl   *api.Client
	gone bool // it did not answer the first question
}

// add adds one answer.
func (a *agent) add(b *support.Bundle, name string, ask func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(a.c.Context(), perAnswer)
	defer cancel()
	v, err := ask(ctx)
	if err != nil {
		a.gone = a.gone || errors.Is(err, api.ErrNoAgent)
		b.Missing(name, cli.NoAgent(a.c, err))
		return
	}
	b.JSON(name, v)
}

// views adds each view of the group.
func (a *agent) views(b *support.Bundle) {
	const which = "SELECT table_schema, table_name FROM information_schema.tables ORDER BY table_schema, table_name"
	ctx, cancel := context.WithTimeout(a.c.Context(), perAnswer)
	defer cancel()
	r, err := sqlrun.AskWithin(ctx, a.c, a.cl, which)
	if err != nil {
		b.Missing("views", err)
		return
	}
	for _, row := range r.Rows {
		schema, name := fmt.Sprint(row[0]), fmt.Sprint(row[1])
		if schema != "coterie" && schema != "sys" || strings.ContainsAny(name, `"/`) {
			continue
		}
		a.add(b, "views/"+schema+"."+name+".json", func(ctx context.Context) (any, error) {
			r, err := sqlrun.AskWithin(ctx, a.c, a.cl, fmt.Sprintf(`SELECT * FROM %s."%s"`, schema, name))
			return objects(r), err
		})
	}
}

// objects returns rows by the names of their columns.
func objects(r console.Result) []map[string]any {
	out := []map[string]any{}
	for _, row := range r.Rows {
		m := map[string]any{}
		for i, v := range row {
			m[r.Columns[i].Name] = v
		}
		out = append(out, m)
	}
	return out
}

// say tells a person what was written and what is missing.
func say(c *cobra.Command, r result) {
	missing, secrets := 0, 0
	for _, p := range r.Parts {
		secrets += p.Removed
		if p.Missing != "" {
			missing++
			cli.Say(c, "missing: %s: %s", p.Name, p.Missing)
		}
	}
	cli.Say(c, "%s: %d bytes, %d parts, %d missing; %d places that may have held a secret were removed. Look through it before you give it away.",
		r.File, r.Bytes, len(r.Parts)-missing, missing, secrets)
}
