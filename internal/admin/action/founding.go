package action

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Founding is a group that is to be made of nodes that have joined each other. It is the document of the change create.
type Founding struct {
	plain
	Group     string         `json:"group"`
	Replicas  []founder      `json:"replicas"`
	Options   values         `json:"options"`
	Databases []string       `json:"databases"`
	Listener  *clientAddress `json:"listener"`
}

// founder is a node that becomes a member of the group that is made.
type founder struct {
	Replica   string `json:"replica"`
	Options   values `json:"options"`
	Secondary values `json:"secondary_role"`
	Primary   values `json:"primary_role"`
}

// clientAddress is the listener of the group that is made.
type clientAddress struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"` // each with the length of its prefix, as 10.0.0.9/24
	Port      int      `json:"port"`      // 0: the nodes' own
}

// ParseFounding reads the document of a group that is to be made.
func ParseFounding(body []byte) (f Founding, err error) {
	return f, decode(body, &f)
}

// named is the document of a change whose statement names a group that does not exist yet.
type named interface{ group() string }

func (f Founding) group() string { return f.Group }

func (f Founding) action() (ddl.Action, error) {
	if err := needs("group", f.Group); err != nil {
		return nil, err
	}
	c := ddl.Create{Databases: f.Databases}
	var failed []error
	add := func(err error) { failed = append(failed, err) }
	for _, r := range f.Replicas {
		x, err := replicaWith(r.Replica, r.Options, r.Secondary, r.Primary)
		add(errors.Join(needs("replica", r.Replica), err))
		c.Replicas = append(c.Replicas, x)
	}
	list, err := f.Options.settings(ddl.InGroup)
	add(err)
	c.Options = list
	if f.Listener != nil {
		c.Listener, err = f.Listener.listener()
		add(err)
	}
	if len(f.Replicas) == 0 {
		add(fail.Usagef("replicas is missing"))
	}
	return c, errors.Join(failed...)
}

// replicaWith returns a server with its options, by their places.
func replicaWith(server string, own, secondary, primary values) (r ddl.Replica, err error) {
	r.Server = server
	var failed [3]error
	r.Options, failed[0] = own.settings(ddl.InReplica)
	r.Secondary, failed[1] = secondary.settings(ddl.InSecondary)
	r.Primary, failed[2] = primary.settings(ddl.InPrimary)
	return r, errors.Join(failed[:]...)
}

func (a clientAddress) listener() (*ddl.Listener, error) {
	if a.Port < 0 || a.Port > 65535 {
		return nil, fail.Usagef("port is from 1 to 65535")
	}
	l := &ddl.Listener{Name: a.Name, Port: a.Port}
	for _, text := range a.Addresses {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
			return nil, fail.Usagef("an address has the length of its prefix, as 10.0.0.9/24 or 2001:db8::9/64, and %q has not", clip(text))
		case p.Addr().Is4():
			l.Addresses = append(l.Addresses, ddl.Address{IP: p.Addr().String(), Mask: net.IP(net.CIDRMask(p.Bits(), 32)).String()})
		case p.Bits() != 64:
			return nil, fail.Usagef("the prefix of an IPv6 address has 64 bits, and that of %s has %d", p.Addr(), p.Bits())
		default:
			l.Addresses = append(l.Addresses, ddl.Address{IP: p.Addr().String()})
		}
	}
	return l, needs("name", a.Name)
}

// clip shortens a text for an error.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "…"
	}
	return s
}

// Plan makes the group of the nodes of g, which have none, as the statements do. It changes nothing: g is a copy.
// primary is the node that has the data, "" while there is none.
func (f Founding) Plan(g ag.Group, primary ag.ReplicaID) Plan {
	var p Plan
	if !g.Draft {
		p.Add(Problem, fmt.Sprintf("the availability group %s exists already: a node is in one group", g.Name), "")
		return p
	}
	if primary == "" {
		p.Add(Problem, "no node takes writes now, so none can be the first primary", "coterie status")
		return p
	}
	a, err := f.action()
	if err == nil {
		p.made, err = p.apply(ddl.Statement{Group: f.Group, Action: a}, ddl.Clone(g), primary)
	}
	if err != nil {
		p.Statement = ""
		what, run := wordsOf(err)
		p.Add(Problem, what, run)
		return p
	}
	p.foresee(primary)
	p.Script = p.commands(primary)
	return p
}

// apply makes the group of g by the statement, and has each of its other replicas join. The notices become findings.
func (p *Plan) apply(st ddl.Statement, g ag.Group, primary ag.ReplicaID) (ag.Group, error) {
	where := ddl.Context{Self: primary, Primary: primary}
	st, err := st.Checked()
	if err != nil {
		return g, err
	}
	p.Statement = st.String()
	g, notices, err := st.Change(g, where)
	if err != nil {
		return g, err
	}
	for _, n := range notices {
		p.Add(Warning, n.Message, "")
	}
	for _, r := range g.Replicas {
		if r.Join != ag.NotJoined {
			continue
		}
		p.Joins = append(p.Joins, r.ID)
		if g, _, err = (ddl.Statement{Group: g.Name, Action: ddl.Join{Server: string(r.ID)}}).Change(g, where); err != nil {
			return g, err
		}
	}
	return g, nil
}

// wordsOf returns the words of the first of several errors, and what to do about it. Nobody has typed the statement, so
// the place in it says nothing.
func wordsOf(err error) (what, run string) {
	var known *ddl.Error
	var refused fail.Error
	switch {
	case errors.As(err, &known) && known.Number != 0:
		return fmt.Sprintf("Msg %d: %s", known.Number, known.Message), known.Hint
	case known != nil:
		return known.Message, known.Hint
	case errors.As(err, &refused):
		return refused.Err.Error(), refused.Hint
	}
	return err.Error(), ""
}

// foresee adds what the group is like once it is made.
func (p *Plan) foresee(primary ag.ReplicaID) {
	g := p.made
	copies, votes, apart := 0, 0, []string(nil)
	for _, r := range g.Replicas {
		switch {
		case !r.Part():
			apart = append(apart, string(r.ID))
		case r.HasData():
			copies++
		}
		if r.Voter {
			votes++
		}
	}
	p.Add(Fine, fmt.Sprintf("the name %s is free: these nodes have no group", ddl.Brackets(g.Name)), "")
	p.Add(Fine, fmt.Sprintf("%s has the data, on PostgreSQL %d, and becomes the first primary", primary, major(g)), "")
	switch {
	case copies == 1:
		p.Add(Warning, fmt.Sprintf("%s is the only copy: nothing takes over when it fails", primary), "add a member once the group is made")
	case g.External > 0:
		p.Add(Fine, "an external etcd votes, and not the members", "")
	case votes == 1:
		p.Add(Warning, "with two members only one votes: if that one dies, nobody takes over by itself", "add a third one, a witness for example")
	default:
		p.Add(Fine, fmt.Sprintf("%d members vote, of which %d have to answer", votes, votes/2+1), "")
	}
	if len(apart) > 0 {
		p.Add(Fine, "no part of the group: "+strings.Join(apart, ", "), "")
	}
	if n, required := g.CommitTarget(g.SynchronousBeside(primary)); n > 0 {
		without := "without any the primary goes on alone"
		if required > 0 {
			without = fmt.Sprintf("with fewer than %d no commit is acknowledged", required)
		}
		p.Add(Fine, fmt.Sprintf("commits wait for %d of the secondaries that are synchronized; %s", n, without), "")
	}
	for _, l := range g.Options.Listeners {
		p.Add(Fine, fmt.Sprintf("the listener %s: its name has to be in DNS, and no other machine may have its addresses", ddl.Brackets(l.Name)), "coterie check")
	}
}

// commands returns how an administrator does the same by hand.
func (p *Plan) commands(primary ag.ReplicaID) string {
	var b strings.Builder
	fmt.Fprintf(&b, "-- On %s, which coterie init --no-group has made:  coterie sql -f THIS_FILE\n%s;\n", primary, p.Statement)
	for _, id := range p.Joins {
		fmt.Fprintf(&b, "%s;\n", ddl.Statement{Group: p.made.Name, Action: ddl.Join{Server: string(id)}})
	}
	return b.String()
}

// Made returns the group that a founding makes; ok is false where it makes none.
func (p *Plan) Made() (g ag.Group, ok bool) { return p.made, p.Script != "" }

type join struct {
	plain
	Replica string `json:"replica"`
}

func (d join) action() (ddl.Action, error) {
	return ddl.Join{Server: d.Replica}, needs("replica", d.Replica)
}
