package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/durable"
)

// linksFile keeps the shapes of the links, so that a killed network comes back with them. The shapes at first are in
// the description, which never changes; this is what commands have changed since.
const linksFile = "links.json"

// Names for several ends of links at once.
const (
	AllEnds  = "all"   // every node and the client; also *
	AllNodes = "nodes" // every node, without the client
)

// Direction is one direction of a link, and its shape.
type Direction struct {
	From  string       `json:"from"`
	To    string       `json:"to"`
	Shape linkem.Shape `json:"shape"`
}

// plan is what linksFile holds: the directions that are not as at first.
type plan struct {
	Changed []Direction `json:"changed"`
}

func (l *Lab) readPlan() (plan, error) {
	var p plan
	path := filepath.Join(l.dir, linksFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("read the links: %w", err)
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("%s: %w", path, err)
	}
	ends := l.ends()
	for _, d := range p.Changed {
		if err := d.Shape.Validate(); err != nil || d.From == d.To || !slices.Contains(ends, d.From) || !slices.Contains(ends, d.To) {
			return p, fmt.Errorf("%s: from %q to %q: no such link (%w)", path, d.From, d.To, errors.Join(err))
		}
	}
	return p, nil
}

func (l *Lab) writePlan(p plan) error {
	return durable.ReplaceJSON(filepath.Join(l.dir, linksFile), p)
}

// shape is what the direction is to be like.
func (p plan) shape(l *Lab, from, to string) linkem.Shape {
	for _, d := range p.Changed {
		if d.From == from && d.To == to {
			return d.Shape
		}
	}
	return l.firstShape(from, to)
}

// set notes a shape.
func (p *plan) set(l *Lab, d Direction) {
	p.Changed = slices.DeleteFunc(p.Changed, func(old Direction) bool { return old.From == d.From && old.To == d.To })
	if d.Shape != l.firstShape(d.From, d.To) {
		p.Changed = append(p.Changed, d)
	}
}

// directions lists every direction of the lab.
func (p plan) directions(l *Lab) []Direction {
	var all []Direction
	for _, from := range l.ends() {
		for _, to := range l.ends() {
			if from != to {
				all = append(all, Direction{from, to, p.shape(l, from, to)})
			}
		}
	}
	return all
}

// firstShape returns a direction's first shape: between nodes that of Options.Links; to the client a perfect one.
func (l *Lab) firstShape(from, to string) linkem.Shape {
	if from == Client || to == Client {
		return linkem.Shape{}
	}
	return l.d.Links
}

// ends lists the ends of links: the nodes and the client.
func (l *Lab) ends() []string {
	var out []string
	for _, n := range l.Nodes() {
		out = append(out, n.Name)
	}
	return append(out, Client)
}

// expand reads names with commas between them: of nodes, client, all or nodes.
func (l *Lab) expand(names string) ([]string, error) {
	ends := l.ends()
	var out []string
	for name := range strings.SplitSeq(names, ",") {
		switch name = strings.TrimSpace(name); {
		case name == AllEnds, name == linkem.Any:
			out = append(out, ends...)
		case name == AllNodes:
			out = append(out, ends[:len(ends)-1]...)
		case slices.Contains(ends, name):
			out = append(out, name)
		default:
			return nil, usage("the lab has no node %q; it has %s, and nodes and all stand for several", name, strings.Join(ends, ", "))
		}
	}
	return out, nil
}

// between lists the directions from every one of a to every one of b, and unless oneWay those back.
func (l *Lab) between(a, b string, oneWay bool) ([]Direction, error) {
	from, err := l.expand(a)
	if err != nil {
		return nil, err
	}
	to, err := l.expand(b)
	if err != nil {
		return nil, err
	}
	var out []Direction
	add := func(from, to string) {
		if from != to && !slices.ContainsFunc(out, func(d Direction) bool { return d.From == from && d.To == to }) {
			out = append(out, Direction{From: from, To: to})
		}
	}
	for _, x := range from {
		for _, y := range to {
			add(x, y)
			if !oneWay {
				add(y, x)
			}
		}
	}
	if len(out) == 0 {
		return nil, usage("%s and %s have no link between them", a, b)
	}
	return out, nil
}

// Link makes the links between a and b as described, whatever they were before; with oneWay only the direction from a
// to b. The names are those of nodes, several with commas between them, Client, AllNodes or AllEnds. It returns what is
// now in force.
func (l *Lab) Link(ctx context.Context, a, b string, s linkem.Shape, oneWay bool) ([]linkem.Stats, error) {
	return l.change(ctx, a, b, oneWay, func(Direction, linkem.Shape) linkem.Shape { return s })
}

// Cut lets nothing through between a and b. With reject, senders get an error at once; without, they wait in vain.
func (l *Lab) Cut(ctx context.Context, a, b string, reject, oneWay bool) ([]linkem.Stats, error) {
	return l.change(ctx, a, b, oneWay, func(_ Direction, now linkem.Shape) linkem.Shape {
		now.Cut, now.Reject = !reject, reject
		return now
	})
}

// Forget lets a stateful firewall between a and b lose its table. Packets of earlier TCP connections are then dropped
// in both directions without a notice to their ends; new connections pass. Each call is one more loss. Heal takes the
// firewall away.
func (l *Lab) Forget(ctx context.Context, a, b string) ([]linkem.Stats, error) {
	return l.change(ctx, a, b, false, func(_ Direction, now linkem.Shape) linkem.Shape {
		now.Forgot++
		return now
	})
}

// Heal makes the links between a and b as they were when the lab was made. With cutsOnly it only ends cuts; a link that
// was slow or lossy still is.
func (l *Lab) Heal(ctx context.Context, a, b string, cutsOnly bool) ([]linkem.Stats, error) {
	return l.change(ctx, a, b, false, func(d Direction, now linkem.Shape) linkem.Shape {
		if cutsOnly {
			now.Cut, now.Reject, now.Forgot = false, false, 0
			return now
		}
		return l.firstShape(d.From, d.To)
	})
}

// endCuts ends all cuts, so that nodes that stop can tell each other, and find each other again.
func (l *Lab) endCuts(ctx context.Context) error {
	if l.cuts() == "" {
		return nil
	}
	_, err := l.Heal(ctx, AllEnds, AllEnds, true)
	return err
}

// change gives links new shapes, first in the plan and then in the network, and returns their counters.
func (l *Lab) change(ctx context.Context, a, b string, oneWay bool, shape func(Direction, linkem.Shape) linkem.Shape) ([]linkem.Stats, error) {
	if err := l.needNamespaces(); err != nil {
		return nil, err
	}
	which, err := l.between(a, b, oneWay)
	if err != nil {
		return nil, err
	}
	unlock, err := lockFile(ctx, filepath.Join(l.dir, ".links.lock"), networkTimeout)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k, err := l.network(ctx)
	if err != nil {
		return nil, err
	}
	defer k.close()
	p, err := l.readPlan()
	if err != nil {
		return nil, err
	}
	for i, d := range which {
		d.Shape = shape(d, p.shape(l, d.From, d.To))
		if err := d.Shape.Validate(); err != nil {
			return nil, usage("%v", err)
		}
		p.set(l, d)
		which[i] = d
	}
	if err := l.writePlan(p); err != nil {
		return nil, fmt.Errorf("keep the links: %w", err)
	}
	for _, d := range which {
		if err := k.Set(d.From, d.To, d.Shape); err != nil {
			return nil, fmt.Errorf("change the link from %s to %s: %w", d.From, d.To, err)
		}
	}
	all, err := k.Stats()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s linkem.Stats) bool {
		return !slices.ContainsFunc(which, func(d Direction) bool { return d.From == s.From && d.To == s.To })
	}), nil
}

// Network is the lab's network in a Status.
type Network struct {
	Kind    string `json:"kind"`              // loopback or netns
	Subnet  string `json:"subnet,omitempty"`  // of the nodes' addresses
	Client  string `json:"client,omitempty"`  // this host's address among them
	PID     *int   `json:"network_pid"`       // of the process that passes the packets; null: none does
	Finding string `json:"finding,omitempty"` // its problem, and the remedy
}

// networkStatus reports the state of the network. Without an answer the links are those it will have again.
func (l *Lab) networkStatus() (Network, []linkem.Stats) {
	n := Network{Kind: NetLoopback}
	if !l.Namespaced() {
		return n, []linkem.Stats{}
	}
	n.Kind = NetNamespaces
	if l.d.Subnet.IsValid() {
		n.Subnet, n.Client = l.d.Subnet.String(), l.d.Subnet.Addr().Next().String()
	}
	p, ok, err := l.networkProcess()
	if ok {
		n.PID = &p.pid
	}
	if k, dialErr := l.dialNetwork(askTimeout); dialErr == nil {
		defer k.close()
		var all []linkem.Stats
		if all, err = k.Stats(); err == nil {
			n.Finding = l.lostNamespaces()
			return n, all
		}
	}
	switch {
	case err != nil:
		n.Finding = fmt.Sprintf("the network does not tell its links: %v", err)
	case ok:
		n.Finding = fmt.Sprintf("the network's process does not answer: is it stopped? kill -CONT %d continues it; kill -9 %[1]d and coterie lab heal make a new one", p.pid)
	default:
		n.Finding = "the network does not run, and no node reaches another: coterie lab up starts it with the links as they were, coterie lab heal as at first"
	}
	return n, l.plannedStats()
}

// lostNamespaces names nodes whose namespace was removed by hand. The nodes continue to run in it, and cannot be
// started there again.
func (l *Lab) lostNamespaces() string {
	var lost []string
	for _, n := range l.Nodes() {
		if !linkem.Exists(l.namespace(n)) {
			lost = append(lost, n.Name)
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf("somebody removed the network namespace of %s; coterie lab down --keep and coterie lab up make it anew", strings.Join(lost, ", "))
}

func (l *Lab) plannedStats() []linkem.Stats {
	all := []linkem.Stats{}
	p, err := l.readPlan()
	if err != nil {
		return all
	}
	for _, d := range p.directions(l) {
		all = append(all, linkem.Stats{From: d.From, To: d.To, Shape: d.Shape})
	}
	return all
}

// cuts names the links that are cut, for an error about a wait in vain; empty: none.
func (l *Lab) cuts() string {
	if !l.Namespaced() {
		return ""
	}
	p, err := l.readPlan()
	if err != nil {
		return ""
	}
	var cut []string
	for _, d := range p.Changed {
		if !d.Shape.Cut && !d.Shape.Reject {
			continue
		}
		if i := slices.Index(cut, d.To+" -> "+d.From); i >= 0 {
			cut[i] = d.To + " <-> " + d.From
		} else {
			cut = append(cut, d.From+" -> "+d.To)
		}
	}
	if len(cut) == 0 {
		return ""
	}
	return "cut: " + strings.Join(cut, ", ") + " (coterie lab heal ends that)"
}
