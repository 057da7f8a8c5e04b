package nodecmd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/listener/clientcert"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/node/webhooks"
	"github.com/coteriedb/coterie/internal/postgres/adopt"
)

// verdict is what coterie config check --json prints of a file. One that is not good ends the command with exit code 2.
type verdict struct {
	File  string `json:"file"`
	Good  bool   `json:"good"`
	Error string `json:"error,omitempty"`
	Node  string `json:"node,omitempty"`
	Group string `json:"group,omitempty"`
}

// Config returns the command config.
func Config() *cobra.Command {
	c := &cobra.Command{Use: "config", GroupID: "node", Short: "Look at this node's configuration file"}
	c.AddCommand(configCheck(), configSocket())
	return c
}

// configSocket returns the command that names the socket of one node, which is not alone on every machine.
func configSocket() *cobra.Command {
	return &cobra.Command{
		Use: "socket", Short: "Print the directory of the private socket of this node's PostgreSQL", Args: cli.Args(0, "no arguments"),
		Long: `Prints the directory in which the server of this node has its socket, for psql -h. Only the node's user can use it, and only on this machine; clients use the listener.
Where several nodes run on a machine, --node says which.`,
		Example: "  runuser -u postgres -- psql -h $(coterie config socket)\n  runuser -u postgres -- psql -h $(coterie config socket --node /srv/n2)",
		RunE: func(c *cobra.Command, _ []string) error {
			dir := cli.Node(c)
			cfg, err := config.Load(dir)
			switch {
			case errors.Is(err, fs.ErrPermission):
				return cli.NoAgent(c, err)
			case err != nil:
				return fail.Error{Kind: fail.Usage, Err: err}
			case cfg.Kind == "witness":
				return fail.Refusedf("%s is a witness, which has no PostgreSQL: name the node of a replica with --node", cfg.Node)
			}
			l, err := config.NewLayout(dir)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), l.Sockets())
			return err
		},
	}
}

func configCheck() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "check", Short: "Check coterie.yaml: unknown keys, wrong values, by line", Args: cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			dir := cli.Node(c)
			cfg, err := config.Load(dir)
			if errors.Is(err, fs.ErrPermission) {
				return cli.NoAgent(c, err)
			}
			if err == nil {
				err = checkFiles(dir, cfg)
			}
			switch {
			case asJSON:
				v := verdict{File: filepath.Join(dir, config.File), Good: err == nil, Node: cfg.Node, Group: cfg.GroupName}
				if err != nil {
					v.Error = err.Error()
				}
				if printErr := cli.PrintJSON(c, v); printErr != nil || err == nil {
					return printErr
				}
				return fail.Error{Kind: fail.Usage, Err: errors.New("")} // it is printed
			case err != nil:
				return fail.Error{Kind: fail.Usage, Err: err}
			}
			cli.Say(c, "%s is good: node %s of group %s", filepath.Join(dir, config.File), strconv.Quote(cfg.Node), strconv.Quote(cfg.GroupName))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// checkFiles looks at the files that coterie.yaml names: those of the receivers of events, as the node's user would use
// them, and the rules for logins and the authorities of client certificates. An agent that starts with bad ones admits
// nobody.
func checkFiles(dir string, cfg config.Config) error {
	l, err := config.NewLayout(dir)
	if err != nil {
		return err
	}
	var errs []error
	for i, w := range cfg.Webhooks {
		if err := webhooks.Check(w, l.Owner()); err != nil {
			errs = append(errs, fmt.Errorf("%s: webhooks[%d].%w", filepath.Join(l.Dir, config.File), i, err))
		}
	}
	if cfg.HBA != "" {
		if _, err := hba.ParseFile(cfg.HBA); err != nil {
			errs = append(errs, fmt.Errorf("hba %s cannot be used: %w", cfg.HBA, err))
		}
	}
	if cfg.ClientCA != "" {
		if _, err := clientcert.Authorities(cfg.ClientCA); err != nil {
			errs = append(errs, fmt.Errorf("client_ca %s cannot be used: %w", cfg.ClientCA, err))
		}
	}
	return errors.Join(errs...)
}

// judgeRules judges the rules of a cluster of that major version of PostgreSQL. A name that begins with a slash is a
// regular expression to the listener, and to PostgreSQL from 16 on.
func judgeRules(text string, major int) (out []adopt.Rule) {
	for _, line := range hba.Lines(text) {
		r := adopt.Rule{Line: line.Number, Text: strings.TrimSpace(line.Text)}
		if line.Err != nil {
			r.Problem = line.Err.Error()
		} else if name := line.Rule.Pattern(); name != "" && major < 16 {
			r.Problem = fmt.Sprintf("%s is a name to PostgreSQL %d, and a regular expression to the listener", name, major)
		}
		out = append(out, r)
	}
	return out
}
