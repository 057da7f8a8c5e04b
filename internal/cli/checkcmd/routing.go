package checkcmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// login is the result of one login: one carrier of an intent, tried through one node.
type login struct {
	Node     string   `json:"node"`
	Carrier  string   `json:"carrier"`
	Intent   string   `json:"intent"`                // that the session requests
	Answered string   `json:"answered_by,omitempty"` // the replica that ran the session
	Primary  bool     `json:"primary"`               // that replica was the primary
	Entry    int      `json:"list_entry,omitempty"`  // number of the chosen entry of the routing list
	Passed   []string `json:"passed_over,omitempty"` // earlier entries, each with the reason
	Took     float64  `json:"took_ms"`
	Error    string   `json:"error,omitempty"`
}

// carrier is a way in which a client states its intent.
type carrier struct {
	name     string
	intent   ag.Intent
	readOnly bool              // by the port
	set      map[string]string // startup parameters
	suffix   string            // of the database name
}

// carriers are the carriers that the listener supports. A default of the role or the database is another one; it is set
// in the database.
var carriers = []carrier{
	{name: "read-write port", intent: ag.ReadWrite},
	{name: "read-only port", intent: ag.ReadOnly, readOnly: true},
	{name: "coterie.intent=READ_ONLY", intent: ag.ReadOnly, set: map[string]string{"coterie.intent": "READ_ONLY"}},
	{name: "options='-c coterie.intent=READ_ONLY'", intent: ag.ReadOnly, set: map[string]string{"options": "-c coterie.intent=READ_ONLY"}},
	{name: "ApplicationIntent=ReadOnly", intent: ag.ReadOnly, set: map[string]string{"ApplicationIntent": "ReadOnly"}},
	{name: "default_transaction_read_only=on", intent: ag.ReadOnly, set: map[string]string{"default_transaction_read_only": "on"}},
	{name: "database@ro", intent: ag.ReadOnly, suffix: "@ro"},
}

// loginLimit bounds one login. Clients do not wait longer for their first answer either.
const loginLimit = 10 * time.Second

func checkRoutingCommand() *cobra.Command {
	var asJSON, dry bool
	var user, database string
	c := &cobra.Command{
		Use: "routing", Short: "Log in once for each way to say an intent, through every node, and show who answered",
		Long: `Logs in through every node's listener, once for each way in which a client may say that it writes or reads, and prints which replica
answered, which entry of the routing list won, and which were passed over, with the reason. The password is taken from PGPASSWORD or
from ~/.pgpass, as psql does.

With --dry-run, and where nobody can log in, it shows what the listeners would do by the routes in force there. Exit code 3 when a
session found no replica, or another one than its intent asks for, and when nobody could log in.`,
		Example: "  PGPASSWORD=… coterie check routing --user app --database shop\n  coterie check routing --dry-run",
		Args:    cli.Args(0, "no arguments"),
		RunE: func(c *cobra.Command, _ []string) error {
			cl, err := cli.Client(c)
			if err != nil {
				return err
			}
			s, err := cl.Status(c.Context())
			if err != nil {
				return cli.NoAgent(c, err)
			}
			routes, err := sqlrun.Ask(c, cl, "VERIFY ROUTING")
			if err != nil {
				return err
			}
			nowhere := false
			if !dry {
				found, err := routingTest{c, cl, s, routes, user, database}.logins()
				if err == nil {
					return printLogins(c, found, asJSON)
				}
				if c.Flags().Changed("user") {
					return err
				}
				cli.Say(c, "%v\nlogged in nowhere: name a role with --user, its password in PGPASSWORD. What follows is what the routes in force say.", err)
				nowhere = true
			}
			if err := (sqlrun.Printer{C: c, JSON: asJSON}).Print(routes); err != nil {
				return err
			}
			if err := routingVerdict(routes); err != nil || !nowhere {
				return err
			}
			return fail.Unhealthyf("no session was tried; to look at the routes alone: coterie check routing --dry-run")
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&dry, "dry-run", false, "log in nowhere: show what the routes in force say")
	c.Flags().StringVar(&user, "user", "", "role to log in as (default: PGUSER, else the user who runs this)")
	c.Flags().StringVar(&database, "database", "postgres", "database to log in to")
	return c
}

// routingTest logs in through the listeners of a group.
type routingTest struct {
	c              *cobra.Command
	cl             *api.Client
	status         api.Status
	routes         console.Result // of VERIFY ROUTING
	user, database string
}

// logins tries every carrier through every node that has a listener. It returns an error if the role is not allowed to
// log in, or the database does not exist.
func (x routingTest) logins() ([]login, error) {
	var out []login
	for _, r := range x.status.Replicas {
		for _, k := range carriers {
			address := r.Listener
			if k.readOnly {
				address = r.ReadOnly
			}
			if address == "" {
				continue
			}
			l := login{Node: string(r.Name), Carrier: k.name, Intent: string(k.intent)}
			err := x.try(&l, address, k)
			var refused *pgconn.PgError
			if errors.As(err, &refused) && (strings.HasPrefix(refused.Code, "28") || refused.Code == "3D000") {
				return nil, fail.Unhealthyf("login through %s: %s; the password is taken from PGPASSWORD or ~/.pgpass", r.Name, refused.Message)
			}
			if err != nil {
				l.Error = strings.TrimSpace(err.Error())
			}
			l.judge(x.status.Primary, x.routes)
			out = append(out, l)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no node has a listener")
	}
	return out, nil
}

// try logs in at address and finds the replica that runs the session. The console of this node lists every session with
// its client's address.
func (x routingTest) try(l *login, address string, k carrier) error {
	cfg, err := pgx.ParseConfig("sslmode=prefer")
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	cfg.Host, cfg.Database, cfg.Fallbacks = host, x.database+k.suffix, withHost(cfg.Fallbacks, host)
	if _, err := fmt.Sscan(port, &cfg.Port); err != nil {
		return err
	}
	for _, f := range cfg.Fallbacks {
		f.Port = cfg.Port
	}
	if x.user != "" {
		cfg.User = x.user
	}
	if cfg.TLSConfig != nil {
		cfg.TLSConfig.ServerName = host
	}
	for name, v := range k.set {
		cfg.RuntimeParams[name] = v
	}
	ctx, cancel := context.WithTimeout(x.c.Context(), loginLimit)
	defer cancel()
	start := time.Now()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	l.Took = float64(time.Since(start).Microseconds()) / 1000
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	r, err := sqlrun.Ask(x.c, x.cl, "SELECT replica FROM coterie.sessions WHERE client = "+ddl.Literal(conn.PgConn().Conn().LocalAddr().String()))
	switch {
	case err != nil:
		return err
	case len(r.Rows) == 0:
		return fmt.Errorf("logged in, and %s does not say who answered: it does not answer this node", l.Node)
	}
	l.Answered = fmt.Sprint(r.Rows[0][0])
	return nil
}

// withHost sets the host of all fallbacks.
func withHost(list []*pgconn.FallbackConfig, host string) []*pgconn.FallbackConfig {
	for _, f := range list {
		f.Host = host
	}
	return list
}

// judge adds the list entry and the entries passed over from the node's routes. It sets Error if the session ran on the
// wrong replica.
func (l *login) judge(primary ag.ReplicaID, routes console.Result) {
	l.Primary = l.Answered != "" && l.Answered == string(primary)
	for _, row := range routes.Rows { // node, intent, target, list entry, passed over
		if fmt.Sprint(row[0]) != l.Node || fmt.Sprint(row[1]) != l.Intent {
			continue
		}
		if row[3] != nil {
			_, _ = fmt.Sscan(fmt.Sprint(row[3]), &l.Entry) // a number
		}
		if passed := fmt.Sprint(row[4]); row[4] != nil && passed != "" {
			l.Passed = strings.Split(passed, "; ")
		}
		if l.Error == "" && l.Intent == string(ag.ReadOnly) && l.Primary && fmt.Sprint(row[2]) != l.Answered {
			l.Error = "a session that reads was sent to the primary, and the list names another"
		}
	}
	if l.Error == "" && l.Intent == string(ag.ReadWrite) && !l.Primary {
		l.Error = "a session that writes was not sent to the primary"
	}
}

// printLogins prints the logins. It returns an unhealthy error if one of them failed.
func printLogins(c *cobra.Command, found []login, asJSON bool) error {
	bad := 0
	for _, l := range found {
		if l.Error != "" {
			bad++
		}
	}
	if asJSON {
		if err := cli.PrintJSON(c, found); err != nil {
			return err
		}
	} else {
		t := tabwriter.NewWriter(cli.Out(c), 2, 8, 2, ' ', 0)
		_, _ = fmt.Fprintln(t, "THROUGH\tSAYS\tANSWERED\tLIST ENTRY\tPASSED OVER\tTOOK")
		for _, l := range found {
			who, entry := l.Answered, "-"
			if l.Primary {
				who += " (primary)"
			}
			if l.Error != "" {
				who = strings.TrimPrefix(who+": "+l.Error, ": ")
			}
			if l.Entry > 0 {
				entry = fmt.Sprint(l.Entry)
			}
			cli.Linef(t, "%s\t%s\t%s\t%s\t%s\t%.1f ms\n", l.Node, l.Carrier, who, entry, strings.Join(l.Passed, "; "), l.Took)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if bad > 0 {
		return fail.Unhealthyf("%d of %d sessions were not served as their intent asks; see coterie status, and VERIFY ROUTING in coterie sql", bad, len(found))
	}
	return nil
}
