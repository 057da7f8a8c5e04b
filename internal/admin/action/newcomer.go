package action

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Newcomer is a member that is to join a group, with the options that it is to have.
type Newcomer struct {
	Name      string `json:"name"`
	Role      string `json:"role"` // replica or witness
	Options   values `json:"options"`
	Secondary values `json:"secondary_role"`
	Primary   values `json:"primary_role"`
}

// The levels of a Finding.
const (
	Fine    = "OK"
	Warning = "WARNING"
	Problem = "PROBLEM"
)

// Finding is what a check of a plan found.
type Finding struct {
	Level string `json:"level"`
	What  string `json:"what"`
	Run   string `json:"run,omitempty"` // what to do about it
}

// Plan is what becomes of a group when a newcomer joins it, or when it is made.
type Plan struct {
	Findings []Finding `json:"findings"`
	// Statement makes the group, or gives a newcomer its options once it has joined; "": it has them already.
	Statement string `json:"statement,omitempty"`
	// Joins are the replicas that JOIN once the group is made.
	Joins  []ag.ReplicaID `json:"joins,omitempty"`
	Script string         `json:"script,omitempty"` // commands, as comments, and the statements; "": there is a problem

	made ag.Group // that the statements make
}

// ParseNewcomer reads the document of a newcomer.
func ParseNewcomer(body []byte) (n Newcomer, err error) {
	if err := decode(body, &n); err != nil {
		return n, err
	}
	if n.Role != "replica" && n.Role != "witness" {
		return n, fail.Usagef("role is replica or witness")
	}
	if n.Role == "witness" && len(n.Options)+len(n.Secondary)+len(n.Primary) > 0 {
		return n, fail.Usagef("a witness has no options")
	}
	return n, nil
}

// Plan has the group take the newcomer, as it would when it joins, and gives it its options by a statement. It changes
// nothing: the group is a copy. primary is "" while there is none.
func (n Newcomer) Plan(g ag.Group, primary ag.ReplicaID) Plan {
	g = ddl.Clone(g)
	if g.Draft {
		return Plan{Findings: []Finding{{Problem, "this node has no availability group yet", "make one first: New group… on the first screen, or CREATE AVAILABILITY GROUP"}}}
	}
	if err := config.CheckName(n.Name); err != nil {
		return Plan{Findings: []Finding{{Level: Problem, What: err.Error()}}}
	}
	replaces, awaited := g.Awaiting(ag.ReplicaID(n.Name))
	p := Plan{Findings: n.enlist(&g)}
	if p.failed() {
		return p
	}
	if awaited {
		p.Add(Warning, fmt.Sprintf("%s takes the place of the %s that had the name, with its options", n.Name, kind(replaces)), "")
	}
	st, given, err := n.statement(g.Name)
	if err == nil && given {
		var notices []ddl.Notice
		before := g
		if g, notices, err = st.Change(g, ddl.Context{Self: primary, Primary: primary}); err == nil {
			for _, x := range notices {
				p.Add(Warning, x.Message, "")
			}
			was, _ := before.Replica(ag.ReplicaID(n.Name))
			if is, _ := g.Replica(ag.ReplicaID(n.Name)); !same(was, is) {
				p.Statement = st.String()
			}
		}
	}
	if err != nil {
		p.Add(Problem, err.Error(), "")
		return p
	}
	p.judge(g, n)
	p.Script = n.script(p.Statement)
	return p
}

// Add adds a finding.
func (p *Plan) Add(level, what, run string) {
	p.Findings = append(p.Findings, Finding{level, what, run})
}

func (p *Plan) failed() bool {
	for _, f := range p.Findings {
		if f.Level == Problem {
			return true
		}
	}
	return false
}

// enlist adds the newcomer to the group, as joining does.
func (n Newcomer) enlist(g *ag.Group) []Finding {
	r := ag.Replica{ID: ag.ReplicaID(n.Name), Endpoint: "the newcomer's", KeyPin: "the newcomer's", AvailabilityMode: ag.SynchronousCommit, Major: major(*g)}
	if n.Role == "witness" {
		r.AvailabilityMode = ag.ConfigurationOnly
	}
	before := len(g.Replicas)
	if err := g.Enlist(r); err != nil {
		return []Finding{{Level: Problem, What: err.Error()}}
	}
	out := []Finding{{Level: Fine, What: fmt.Sprintf("the name %s is free, and the group has %d of %d members", n.Name, before, ag.MaxMembers)}}
	if n.Role == "replica" {
		out = append(out, Finding{Level: Fine, What: fmt.Sprintf("the new machine needs PostgreSQL %d, as the others have it", r.Major)})
	}
	return out
}

func major(g ag.Group) int {
	for _, r := range g.Replicas {
		if r.HasData() {
			return r.Major
		}
	}
	return 0
}

func kind(r ag.Replica) string {
	if r.HasData() {
		return "replica"
	}
	return "witness"
}

// statement returns the statement that gives the newcomer its options; given is false if it asks for none.
func (n Newcomer) statement(group string) (st ddl.Statement, given bool, err error) {
	if len(n.Options)+len(n.Secondary)+len(n.Primary) == 0 {
		return st, false, nil
	}
	a, err := options{Replica: n.Name, Options: n.Options, Secondary: n.Secondary, Primary: n.Primary}.action()
	if err != nil {
		return st, true, err
	}
	st, err = ddl.Statement{Group: group, Action: a}.Checked()
	return st, true, err
}

// same reports whether a statement has changed nothing of a replica.
func same(a, b ag.Replica) bool {
	x, err := json.Marshal(a)
	y, bad := json.Marshal(b)
	return err == nil && bad == nil && bytes.Equal(x, y)
}

// judge adds what the group is like with the newcomer.
func (p *Plan) judge(g ag.Group, n Newcomer) {
	voters := 0
	for _, r := range g.Replicas {
		if r.Voter {
			voters++
		}
	}
	me, _ := g.Replica(ag.ReplicaID(n.Name))
	switch {
	case g.External > 0:
		p.Add(Fine, "an external etcd votes, and not the members", "")
	case me.Voter:
		p.Add(Fine, fmt.Sprintf("%s votes: %d members vote, of which %d have to answer", n.Name, voters, voters/2+1), "")
	case len(g.Replicas) == 2:
		p.Add(Warning, "with two members only one votes: if that one dies, nobody takes over by itself", "add a third one, a witness for example")
	default:
		p.Add(Fine, fmt.Sprintf("%s does not vote: %d members vote already, and their number is odd", n.Name, voters), "")
	}
	if n.Role == "replica" && me.AvailabilityMode == ag.SynchronousCommit {
		p.Add(Fine, "commits may wait for "+n.Name+" once it has caught up", "")
	}
}

// script returns how an administrator does the same by hand.
func (n Newcomer) script(statement string) string {
	verb, role := "join", ""
	if n.Role == "witness" {
		verb, role = "witness", " --role witness"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- On a replica of the group:  coterie member add-token%s\n-- On the new machine:  coterie %s TOKEN --name %s\n", role, verb, n.Name)
	if statement == "" {
		fmt.Fprintf(&b, "-- That is all: %s begins with these options.\n", n.Name)
		return b.String()
	}
	fmt.Fprintf(&b, "-- Once coterie status lists %s, on any node:  coterie sql -f THIS_FILE\n%s;\n", n.Name, statement)
	return b.String()
}
