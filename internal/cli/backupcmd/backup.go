package backupcmd

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/nodecmd"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/session"
)

const about = `Backups of the group, and the archive of its WAL, with which any point in time can be restored. pgBackRest does the work: it must be
installed on every replica. Its configuration is in the node directory, its archive_command is a setting of the
group, so that whichever replica leads archives. Nothing is written to /etc.

Enable backups on the primary first, then on the other replicas with the same repository. Then schedule, on every replica:

  coterie backup run --if-preferred`

// Backup returns the command backup.
func Backup() *cobra.Command {
	c := &cobra.Command{
		Use: "backup", GroupID: "group", Short: "Back the group up, and look after its backups", Long: about, Args: cli.Args(0, "a command below it"),
		Example: "  coterie backup enable --repo /backup\n  coterie backup run --type full\n  coterie backup list\n  coterie check backup",
	}
	c.AddCommand(enableCommand(), runCommand(), listCommand(), verifyCommand(), expireCommand(), disableCommand())
	return c
}

// work is one run of a command on a node.
type work struct {
	c      *cobra.Command
	layout config.Layout
	cfg    config.Config
	client *api.Client

	replayLimit time.Duration // of coterie backup run
}

// open reads which replica this is, and runs f as the user that owns it. Root runs the command again as that user.
func open(c *cobra.Command, f func(x *work) error) error {
	return openNode(c, func(x *work) error {
		if x.cfg.PostgreSQL == nil {
			return fail.Refusedf("%s is a witness and holds no data; run this on a replica", x.cfg.Node)
		}
		return f(x)
	})
}

// openNode is open for commands that a witness knows, too.
func openNode(c *cobra.Command, f func(x *work) error) error {
	x := &work{c: c}
	var err error
	if x.client, err = cli.Client(c); err != nil {
		return err
	}
	if x.layout, err = config.NewLayout(cli.Node(c)); err != nil {
		return err
	}
	if x.cfg, err = config.Load(x.layout.Dir); err != nil {
		return fail.Error{Kind: fail.Usage, Err: err}
	}
	if os.Getuid() == 0 && x.layout.Owner() != 0 {
		args := append(slices.Clone(os.Args[1:]), "--node", x.layout.Dir)
		return nodecmd.AsOwner(c.Context(), x.layout, c.OutOrStdout(), c.ErrOrStderr(), args)
	}
	return f(x)
}

// status asks the agent.
func (x *work) status() (api.Status, error) {
	st, err := x.client.Status(x.c.Context())
	if err != nil {
		return st, cli.NoAgent(x.c, err)
	}
	return st, nil
}

// server is this node's server as the tool reaches it.
func (x *work) server() pgbackrest.Server {
	return pgbackrest.Server{Data: x.cfg.PostgreSQL.Data, Socket: x.layout.Sockets(), Superuser: x.superuser()}
}

// session is how this node's server is asked.
func (x *work) session() session.Server {
	return session.Server{SocketDir: x.layout.Sockets(), Superuser: x.superuser(), Major: 14} // what all versions know
}

func (x *work) superuser() string {
	if s := x.cfg.PostgreSQL.Superuser; s != "" {
		return s
	}
	return "postgres"
}

// alter runs a clause of ALTER AVAILABILITY GROUP.
func (x *work) alter(group, clause string) error {
	r, err := sqlrun.Ask(x.c, x.client, "ALTER AVAILABILITY GROUP "+ddl.Brackets(group)+" "+clause)
	for _, n := range r.Notices {
		cli.Say(x.c, "%s: %s", n.Severity, n.Message)
	}
	return err
}

// others returns what the other replicas lack that could take over, each with what to run there.
func (x *work) others(ctx context.Context, st api.Status, repo string) ([]string, error) {
	r, err := sqlrun.AskWithin(ctx, x.c, x.client, "SELECT node, enabled, repository, problem FROM coterie.backup")
	if err != nil {
		return nil, err
	}
	type seen struct{ enabled, repository, problem string }
	said := map[ag.ReplicaID]seen{}
	for _, row := range r.Rows {
		said[ag.ReplicaID(fmt.Sprint(row[0]))] = seen{fmt.Sprint(row[1]), text(row[2]), text(row[3])}
	}
	var out []string
	for _, m := range st.Replicas {
		s, answers := said[m.Name]
		switch {
		case m.Name == st.Node || m.Mode == ag.ConfigurationOnly:
		case !answers:
			out = append(out, fmt.Sprintf("%s does not say whether it has backups enabled", m.Name))
		case s.enabled != "true" && s.enabled != "1":
			out = append(out, fmt.Sprintf("%s has no backups enabled; there: coterie backup enable --repo %s", m.Name, word(repo)))
		case s.repository != repo:
			out = append(out, fmt.Sprintf("%s has another repository, %s; there: coterie backup enable --repo %s", m.Name, s.repository, word(repo)))
		case s.problem != "":
			out = append(out, fmt.Sprintf("%s cannot use the repository: %s", m.Name, s.problem))
		}
	}
	return out, nil
}

// text returns a value of the console; "" for NULL.
func text(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// plan returns the node's plan and its tool.
func (x *work) plan() (backup.Plan, *pgbackrest.Tool, error) { return planfile.Open(x.layout) }

// stanzaOf returns the name of a group's part of a repository.
func stanzaOf(group string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r) {
			return r
		}
		return '_'
	}, group)
}

// word returns a text as a word of a shell, for commands that are printed.
func word(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/:._-+,@%", r)
	}) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
