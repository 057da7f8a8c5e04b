package upgradecmd

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// The ways in which an agent is replaced.
const (
	asWitness     = "witness"
	asSecondary   = "secondary"
	afterFailover = "after_failover"
	inPlace       = "in_place"
)

// The states of an agent in the document of coterie upgrade agents.
const (
	stateCurrent  = "current"  // it ran the installed version already
	stateWaits    = "waits"    // it has not been asked
	stateAsked    = "asked"    // it was asked, and it is not known to be well again
	stateUpgraded = "upgraded" // it runs the installed version
)

// agentLine is one agent in that document.
type agentLine struct {
	Node      ag.ReplicaID `json:"node"`
	How       string       `json:"how,omitempty"` // witness, secondary, after_failover, in_place; absent: it is left alone
	Running   string       `json:"running"`       // when the command began
	Installed string       `json:"installed"`
	State     string       `json:"state"`
	Took      int64        `json:"took_ns,omitempty"`
	Problem   string       `json:"problem,omitempty"` // why a version is not known
}

// says returns what the restart of the agent does to clients.
func (a agentLine) says() string {
	switch a.How {
	case asWitness:
		return "a witness: no client notices"
	case afterFailover:
		return "the primary: it gives the leadership away by a planned failover, and restarts as a secondary"
	case inPlace:
		return "the primary, in place: new transactions wait, and the sessions of its own listener are closed"
	}
	return "a secondary: the sessions of its own listener are closed and may connect again"
}

// look is what is known of the group and its programs at one moment.
type look struct {
	s        api.Status
	programs []api.Program
	upgraded map[ag.ReplicaID]bool // by this command; an earlier version may not say which one it is
	inPlace  bool
	mixed    bool // other versions on other nodes are wanted
}

// order returns the agents that a restart would give another version, in the order of their restarts: witnesses, then
// secondaries, those that commits wait for last, then the primary.
func (l look) order() (out []agentLine) {
	rank := map[ag.ReplicaID]int{}
	for _, p := range l.programs {
		if !p.Changed() || l.upgraded[p.Node] {
			continue
		}
		m, _ := l.s.Replica(p.Node)
		a := agentLine{Node: p.Node, How: asSecondary, Running: p.Running, Installed: p.Installed, State: stateWaits}
		switch {
		case m.Mode == ag.ConfigurationOnly:
			a.How, rank[a.Node] = asWitness, 0
		case p.Node == l.s.Primary && l.inPlace:
			a.How, rank[a.Node] = inPlace, 3
		case p.Node == l.s.Primary:
			a.How, rank[a.Node] = afterFailover, 3
		case m.Mode == ag.SynchronousCommit:
			rank[a.Node] = 2
		default:
			rank[a.Node] = 1
		}
		out = append(out, a)
	}
	slices.SortStableFunc(out, func(a, b agentLine) int { return cmp.Compare(rank[a.Node], rank[b.Node]) })
	return out
}

// judge returns why no agent is to be restarted now; nil: the next one may be.
func (l look) judge(order []agentLine) error {
	if l.s.Availability.Removed {
		return fail.Refusedf("%s was removed from the group, whose agents it cannot ask; nothing was changed", l.s.Node)
	}
	if err := l.known(); err != nil {
		return err
	}
	if len(order) == 0 {
		return nil
	}
	if !l.s.Quorum {
		return fail.Unhealthyf("no majority of the quorum answers %s, so no agent is restarted; start the members that do not answer, see coterie status", l.s.Node)
	}
	if err := l.sameEverywhere(order); err != nil {
		return err
	}
	if last := order[len(order)-1]; last.How == afterFailover && len(l.mayLead()) == 0 {
		return fail.Refusedf("%s is the primary, and no synchronized secondary could lead while its agent restarts; with --in-place it stays the primary, and transactions wait for a moment", last.Node)
	}
	return nil
}

// known returns an error if a member does not answer, or does not say which program is installed there.
func (l look) known() error {
	var silent, older []string
	for _, p := range l.programs {
		switch {
		case p.Silent:
			silent = append(silent, string(p.Node))
		case p.Older && !l.upgraded[p.Node]:
			older = append(older, string(p.Node))
		case p.Problem != "" && !p.Older:
			return fail.Refusedf("%s could not begin another agent: %s; install the program there again", p.Node, p.Problem)
		}
	}
	slices.Sort(silent)
	slices.Sort(older)
	switch {
	case len(silent) > 0:
		return fail.Unhealthyf("%s %s, and while a member is missing no other one is restarted; start it, or take it out: coterie member remove %s. To restart single agents all the same, run on their nodes: coterie restart",
			strings.Join(silent, ", "), plural(silent, "does not answer", "do not answer"), silent[0])
	case len(older) > 0:
		return fail.Refusedf("%s %s a version of Coterie that cannot be asked by another node; there, one after the other, run coterie restart, and then run coterie upgrade agents again for the rest",
			strings.Join(older, ", "), plural(older, "runs", "run"))
	}
	return nil
}

// sameEverywhere returns an error if not every node has the same version installed.
func (l look) sameEverywhere(order []agentLine) error {
	nodes := map[string][]string{}
	var versions []string
	for _, p := range l.programs {
		if p.Installed == "" {
			continue
		}
		if nodes[p.Installed] == nil {
			versions = append(versions, p.Installed)
		}
		nodes[p.Installed] = append(nodes[p.Installed], string(p.Node))
	}
	if len(versions) < 2 || l.mixed {
		return nil
	}
	var have, would []string
	for _, v := range versions {
		have = append(have, fmt.Sprintf("%s on %s", v, strings.Join(nodes[v], ", ")))
	}
	for _, a := range order {
		would = append(would, string(a.Node))
	}
	return fail.Refusedf("the nodes have different versions installed: %s. Install one version on all of them; or, with --allow-mixed, restart only %s, and leave the others as they are",
		strings.Join(have, "; "), strings.Join(would, ", "))
}

// mayLead returns the synchronized secondaries that run the program to which the primary's agent is to change, or will
// when it is the primary's turn.
func (l look) mayLead() (out []ag.ReplicaID) {
	at := slices.IndexFunc(l.programs, func(p api.Program) bool { return p.Node == l.s.Primary })
	if at < 0 {
		return nil
	}
	for _, m := range l.s.Replicas {
		if m.Name == l.s.Primary || m.Sync != ag.Synchronized {
			continue
		}
		for _, p := range l.programs {
			if p.Node == m.Name && (p.Installed == l.programs[at].Installed || l.upgraded[p.Node]) {
				out = append(out, m.Name)
			}
		}
	}
	return out
}

func plural(of []string, one, more string) string {
	if len(of) == 1 {
		return one
	}
	return more
}

// brief returns a version without the date of its commit.
func brief(version string) string {
	if at := strings.LastIndex(version, ", "); at > 0 && strings.Contains(version[:at], "(commit ") {
		return version[:at] + ")"
	}
	return cmp.Or(version, "an unknown version")
}
