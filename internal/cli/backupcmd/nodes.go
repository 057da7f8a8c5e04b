package backupcmd

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/cli"
	"github.com/coteriedb/coterie/internal/cli/sqlrun"
)

// nodeState is what a replica says of the backups.
type nodeState struct {
	Node       string   `json:"node"`
	Enabled    bool     `json:"enabled"`
	Repository string   `json:"repository,omitempty"`
	Last       string   `json:"last_backup,omitempty"` // when it ended; "": none is known
	Label      string   `json:"last_backup_label,omitempty"`
	MadeOn     string   `json:"last_backup_node,omitempty"`
	Running    *running `json:"running,omitempty"` // the backup that it makes
	Failure    string   `json:"last_failure,omitempty"`
	Restores   string   `json:"interrupted_restores,omitempty"` // directories
}

// running is a backup that is under way.
type running struct {
	Kind    string `json:"type"`
	Since   string `json:"since"`
	Percent string `json:"percent"`
	Phase   string `json:"phase,omitempty"`
}

// nodesQuery has a column for each of the fields above.
const nodesQuery = `SELECT node, enabled, repository, last_backup, last_backup_label, last_backup_node, running_type, running_since, running_pct, running_phase,
last_failure, interrupted_restore FROM coterie.backup ORDER BY node`

// nodesLimit bounds the wait for what the nodes say.
const nodesLimit = 5 * time.Second

// nodes asks the agent what every replica says.
func (x *work) nodes() (out []nodeState, err error) {
	ctx, cancel := context.WithTimeout(x.c.Context(), nodesLimit)
	defer cancel()
	r, err := sqlrun.AskWithin(ctx, x.c, x.client, nodesQuery)
	if err != nil {
		return nil, err
	}
	for _, row := range r.Rows {
		at := func(i int) string {
			if i >= len(row) {
				return ""
			}
			return text(row[i])
		}
		n := nodeState{
			Node: at(0), Enabled: at(1) == "true" || at(1) == "1", Repository: at(2), Last: at(3), Label: at(4), MadeOn: at(5), Failure: at(10), Restores: at(11),
		}
		if at(6) != "" {
			n.Running = &running{Kind: at(6), Since: at(7), Percent: at(8), Phase: at(9)}
		}
		out = append(out, n)
	}
	return out, nil
}

// lines returns what is under way on the replica, and what was interrupted there.
func (n nodeState) lines() (out []string) {
	if r := n.Running; r != nil {
		percent, _, _ := strings.Cut(r.Percent, ".")
		out = append(out, fmt.Sprintf("a %s backup is under way on %s since %s: %s", r.Kind, n.Node, r.Since, cmp.Or(r.Phase, percent+" %")))
	}
	if n.Failure != "" {
		out = append(out, fmt.Sprintf("the last backup that was begun on %s failed: %s", n.Node, n.Failure))
	}
	if n.Restores != "" {
		out = append(out, fmt.Sprintf("a restore from %s into %s was interrupted; there: coterie restore --undo DIR removes what it left", n.Node, n.Restores))
	}
	return out
}

// listOthers shows on a node without a repository what the replicas say. none is the error if none of them has one.
func (x *work) listOthers(asJSON bool, none error) error {
	nodes, err := x.nodes()
	if err != nil {
		return none
	}
	some := false
	for _, n := range nodes {
		some = some || n.Enabled
	}
	switch {
	case !some:
		return none
	case asJSON:
		return cli.PrintJSON(x.c, listed{Nodes: nodes})
	}
	w := cli.Out(x.c)
	cli.Linef(w, "no backups are enabled on %s; coterie backup list shows them on another replica\n", x.cfg.Node)
	for _, n := range nodes {
		switch {
		case n.Label != "":
			cli.Linef(w, "%s: the last backup in %s is %s, which ended %s, made on %s\n", n.Node, n.Repository, n.Label, n.Last, cmp.Or(n.MadeOn, "a replica that is not known"))
		case n.Enabled:
			cli.Linef(w, "%s: no backup is known in %s\n", n.Node, n.Repository)
		}
		for _, line := range n.lines() {
			cli.Linef(w, "%s\n", line)
		}
	}
	return nil
}
