package backupcmd

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/units"
)

// listed is the JSON document of coterie backup list.
type listed struct {
	Repository string          `json:"repository"`
	Stanza     string          `json:"stanza"`
	Running    bool            `json:"running"` // a backup is under way
	Nodes      []nodeState     `json:"nodes"`   // what each replica says; empty where the agent does not answer
	Problem    string          `json:"problem,omitempty"`
	Timeline   uint32          `json:"newest_timeline"`
	Backups    []backup.Backup `json:"backups"`
	Gaps       []backup.Gap    `json:"gaps"` // WAL that is missing behind the oldest backup
}

func listCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Short: "Show the backups in the repository", Args: cli.Args(0, "no arguments"),
		Long: `Shows the backups, the oldest first, WAL that is missing between them, which backup is under way and where, and what restores have left
that were interrupted. It runs on any replica with backups enabled, with or without an agent. Another node shows what the replicas tell.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return openNode(c, func(x *work) error {
				p, tool, err := x.plan()
				if errors.Is(err, planfile.ErrNone) {
					return x.listOthers(asJSON, err)
				}
				if err != nil {
					return err
				}
				have, err := tool.Catalog(c.Context())
				if err != nil {
					return err
				}
				return x.list(p, have, asJSON)
			})
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (x *work) list(p backup.Plan, have backup.Catalog, asJSON bool) error {
	out := listed{
		Repository: p.Repository.String(), Stanza: p.Stanza, Running: have.Running, Problem: have.Problem, Timeline: have.Newest(),
		Backups: append([]backup.Backup{}, have.Backups...), Gaps: []backup.Gap{}, Nodes: []nodeState{},
	}
	if nodes, err := x.nodes(); err == nil { // without an agent the repository has to do
		out.Nodes = nodes
	}
	out.Running = out.Running || slices.ContainsFunc(out.Nodes, func(n nodeState) bool { return n.Running != nil })
	for _, b := range have.Backups {
		if gaps, err := have.Gaps(b, out.Timeline, 0); err == nil {
			out.Gaps = append(out.Gaps, gaps...)
			break
		}
	}
	if asJSON {
		return cli.PrintJSON(x.c, out)
	}
	return out.print(cli.Out(x.c))
}

func (l listed) print(w io.Writer) error {
	if l.Problem != "" {
		cli.Linef(w, "%s: %s\n", l.Repository, l.Problem)
	}
	if l.Running && !slices.ContainsFunc(l.Nodes, func(n nodeState) bool { return n.Running != nil }) {
		_, _ = fmt.Fprintln(w, "a backup is under way")
	}
	for _, n := range l.Nodes {
		for _, line := range n.lines() {
			cli.Linef(w, "%s\n", line)
		}
	}
	if len(l.Backups) == 0 {
		cli.Linef(w, "no backups in %s, stanza %s\n", l.Repository, l.Stanza)
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "BACKUP\tTYPE\tMADE ON\tENDED\tTOOK\tDATABASE\tIN THE REPOSITORY\t")
	for _, b := range l.Backups {
		note := ""
		if b.Failed {
			note = "pages with wrong checksums"
		}
		cli.Linef(t, "%s\t%s\t%s\t%s\t%v\t%s\t%s\t%s\n", b.Label, b.Kind, cmp.Or(b.Node, "-"), b.Ended.Local().Format("2006-01-02 15:04:05 -07:00"), b.Ended.Sub(b.Started).Round(time.Second),
			units.Bytes(b.Size), units.Bytes(b.Stored), note)
	}
	for _, g := range l.Gaps {
		cli.Linef(t, "missing: %d segments of WAL, from %s to %s\n", g.Count, g.From, g.To)
	}
	return t.Flush()
}

func expireCommand() *cobra.Command {
	return &cobra.Command{
		Use: "expire", Short: "Remove backups and WAL that are kept no longer", Args: cli.Args(0, "no arguments"),
		Long: "Removes what --retention of coterie backup enable does not keep. Each coterie backup run does so as well.",
		RunE: func(c *cobra.Command, _ []string) error {
			return open(c, func(x *work) error { return x.expire() })
		},
	}
}

// expire removes backups that are kept no longer. While one is made elsewhere it is refused: the tool keeps the two
// apart on one machine only, and each rewrites the list of backups in the repository.
func (x *work) expire() error {
	_, tool, err := x.plan()
	if err != nil {
		return err
	}
	if nodes, err := x.nodes(); err == nil { // without the group's word nothing is known to run
		for _, n := range nodes {
			if n.Running != nil && n.Node != x.cfg.Node {
				return fail.Unhealthyf("a %s backup is under way on %s since %s, and removes what is kept no longer at its end; nothing was changed: run it again then", n.Running.Kind, n.Node, n.Running.Since)
			}
		}
	}
	ctx := x.c.Context()
	before, err := tool.Backups(ctx)
	if err != nil {
		return err
	}
	if err := tool.Expire(ctx); err != nil {
		return err
	}
	after, err := tool.Backups(ctx)
	if err != nil {
		return err
	}
	cli.Say(x.c, "%d backups, %d of them removed", len(before.Backups), len(before.Backups)-len(after.Backups))
	return nil
}

// nowhere is the archive_command of a group that archives no more, until archive_mode is off: without one that succeeds
// the servers would keep all WAL.
const nowhere = "/bin/true"

func disableCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "disable", Short: "Archive no more, and forget the repository's key", Args: cli.Args(0, "no arguments"),
		Long: `Takes archive_mode and archive_command away from the group, unless that is another command by now, and the configuration with its secrets
from this node. The repository and its backups stay as they are: what they have can still be restored. Run it on the other replicas too: each has the configuration.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return open(c, func(x *work) error {
				p, _, err := x.plan()
				if err != nil {
					return err
				}
				if !yes && cli.Interactive(c) {
					if err := cli.Confirm(c, x.cfg.GroupName, "nothing that the group %s writes from now on can be restored. Type its name to go on:", x.cfg.GroupName); err != nil {
						return err
					}
				}
				return x.disable(p)
			})
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask for the group's name on a terminal")
	return c
}

func (x *work) disable(p backup.Plan) error {
	st, err := x.status()
	if err != nil {
		return err
	}
	mode, command, err := archiveSettings(x.c.Context(), x)
	if err != nil {
		return fail.Unhealthyf("the server of this node does not answer, so its archive_command is not known: %w; nothing was changed: see coterie status", err)
	}
	said := st.Group + " archives no more"
	if ours := []string{"", nowhere, pgbackrest.ArchiveCommand(p.Stanza)}; mode == "off" || slices.Contains(ours, command) {
		err = x.alter(st.Group, "SET PARAMETER [archive_mode] = 'off', [archive_command] = "+ddl.Literal(nowhere))
	} else {
		said = st.Group + " goes on archiving with another archive_command than that of the backups here"
	}
	if err == nil {
		err = planfile.Remove(x.layout)
	}
	if err != nil {
		return err
	}
	cli.Say(x.c, "%s; the backups stay in %s", said, p.Repository)
	for _, m := range st.Replicas {
		if m.Name != st.Node && m.Mode != ag.ConfigurationOnly {
			cli.Say(x.c, "on %s, which may have the configuration and its secrets, too: coterie backup disable", m.Name)
		}
	}
	return nil
}
