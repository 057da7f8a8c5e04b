package demo

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

// Report is the result of the demo, as printed by --json.
type Report struct {
	Version    string  `json:"version"`
	PostgreSQL string  `json:"postgresql"`
	CPUs       int     `json:"cpus"`
	Seconds    float64 `json:"seconds"`
	Parts      []Part  `json:"parts"`
	UpSeconds  float64 `json:"lab_up_seconds"`
	Rows       int64   `json:"rows_loaded"`
	TPS        float64 `json:"transactions_per_second"` // with the outage in it

	Killed   string         `json:"killed"`
	Promoted string         `json:"promoted"`
	OutageMS int64          `json:"outage_ms"`
	Death    Connections    `json:"connections_node_death"`
	Rejoin   observe.Rejoin `json:"rejoin"`
	Planned  Planned        `json:"planned_failover"`
	Handover Connections    `json:"connections_planned"`
	Reads    []Reads        `json:"reads"`

	Acknowledged int64     `json:"acknowledged"`
	Lost         int64     `json:"lost"` // on the replica that has lost most
	Unknown      int64     `json:"unknown"`
	Present      int64     `json:"unknown_present"`
	Duplicates   int64     `json:"duplicates"`
	LSN          string    `json:"compared_at"`
	Replicas     []Replica `json:"replicas"`
	SameContents bool      `json:"same_contents"`
	Wrong        []string  `json:"wrong"` // every promise that was not kept, in words
	Sound        bool      `json:"sound"`
	Kept         bool      `json:"kept_running"`
}

// Part is how long one part of the story took.
type Part struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Replica is the state of one replica at the end.
type Replica struct {
	Name       string         `json:"name"`
	Conditions int            `json:"conditions_held"`
	Violated   []string       `json:"conditions_violated"`
	Digest     string         `json:"digest"`
	Ledger     ledger.Verdict `json:"ledger"`
}

// Connections describes how the clients' connections fared in one part of the story. A client has one session to write
// and one to read.
type Connections struct {
	Sessions    int   `json:"sessions"`
	Reconnected int   `json:"reconnections"`
	GapMS       int64 `json:"longest_gap_ms"` // without an acknowledged write, of any client
	Failed      int64 `json:"failed"`         // transactions that a server said it rolled back
	Unknown     int64 `json:"unknown"`        // transactions in doubt
}

func connections(r tpcc.Result) Connections {
	c := Connections{Sessions: 2 * len(r.Clients), Failed: r.Fail, Unknown: r.Unknown}
	for _, one := range r.Clients {
		c.Reconnected += one.Reconnects
		c.GapMS = max(c.GapMS, one.LongestGap.Milliseconds())
	}
	return c
}

// String returns the counts in words.
func (c Connections) String() string {
	return fmt.Sprintf("of %d sessions %d kept, %d made again; longest wait of a client to write %d ms; transactions rolled back %d, in doubt %d",
		c.Sessions, max(c.Sessions-c.Reconnected, 0), c.Reconnected, c.GapMS, c.Failed, c.Unknown)
}

// Planned is the planned failover.
type Planned struct {
	From     string `json:"from"`
	To       string `json:"to"`
	TookMS   int64  `json:"took_ms"`
	OutageMS int64  `json:"outage_ms"`
	Refused  int64  `json:"ledger_errors"` // rows of the ledger that were not acknowledged meanwhile
}

// Reads is where read-only transactions were answered in one part of the story.
type Reads struct {
	Stage  string           `json:"stage"`
	ByNode map[string]int64 `json:"by_node"`
}

func replica(f finding, v ledger.Verdict) Replica {
	r := Replica{Name: f.node, Digest: f.digest, Ledger: v, Violated: []string{}}
	for _, c := range f.conditions {
		if c.Violations == 0 {
			r.Conditions++
			continue
		}
		r.Violated = append(r.Violated, fmt.Sprintf("condition %d (%s): %d violations, as %s", c.Number, c.Name, c.Violations, c.Sample))
	}
	return r
}

// judge sums the replicas up and lists what is wrong.
func (r *Report) judge() {
	r.Wrong, r.SameContents = []string{}, true
	for _, one := range r.Replicas {
		v := one.Ledger
		r.Acknowledged = max(r.Acknowledged, v.Acknowledged)
		r.Lost, r.Duplicates = max(r.Lost, v.Lost), max(r.Duplicates, v.Duplicates)
		r.Unknown, r.Present = max(r.Unknown, v.Unknown), max(r.Present, v.UnknownPresent)
		r.SameContents = r.SameContents && one.Digest == r.Replicas[0].Digest
		if v.Lost > 0 {
			r.Wrong = append(r.Wrong, fmt.Sprintf("%s lacks %d acknowledged rows: %s", one.Name, v.Lost, some(v.LostIDs, v.Lost)))
		} else if !v.Sound() {
			r.Wrong = append(r.Wrong, fmt.Sprintf("%s: %s", one.Name, v))
		}
		for _, c := range one.Violated {
			r.Wrong = append(r.Wrong, one.Name+": "+c)
		}
	}
	if !r.SameContents {
		r.Wrong = append(r.Wrong, "the replicas differ at the same position: "+r.digests())
	}
	if len(r.Replicas) == 0 || r.Acknowledged == 0 {
		r.Wrong = append(r.Wrong, "nothing was compared")
	}
	r.Sound = len(r.Wrong) == 0
}

// some names the first few of n.
func some(ids []string, n int64) string {
	const few = 3
	s := strings.Join(ids[:min(len(ids), few)], ", ")
	if n > few {
		s += fmt.Sprintf(" and %d more", n-few)
	}
	return s
}

func (r *Report) digests() string {
	var parts []string
	for _, one := range r.Replicas {
		parts = append(parts, fmt.Sprintf("%s %.8s", one.Name, one.Digest))
	}
	return strings.Join(parts, ", ")
}

// lines are the verdict as printed.
func (r *Report) lines() []string {
	out := []string{
		fmt.Sprintf("outage %d ms (%s killed, %s took over)   acknowledged %s   lost %d   unknown %d (%d present, %d absent)   duplicates %d",
			r.OutageMS, r.Killed, r.Promoted, observe.Thousands(r.Acknowledged), r.Lost, r.Unknown, r.Present, r.Unknown-r.Present, r.Duplicates),
		fmt.Sprintf("planned failover %s→%s: outage %d ms, %d rows of the writer not acknowledged", r.Planned.From, r.Planned.To, r.Planned.OutageMS, r.Planned.Refused),
		"connections, node death: " + r.Death.String(),
		"connections, planned:    " + r.Handover.String(),
	}
	for _, s := range r.Reads {
		out = append(out, fmt.Sprintf("reads %s: %s", s.Stage, shares(s.ByNode)))
	}
	var held []string
	for _, one := range r.Replicas {
		held = append(held, fmt.Sprintf("%s %d/%d", one.Name, one.Conditions, one.Conditions+len(one.Violated)))
	}
	same := "all replicas hold the same"
	if !r.SameContents {
		same = "THE REPLICAS DIFFER"
	}
	out = append(out, fmt.Sprintf("conditions: %s   contents at %s: %s (%s)", strings.Join(held, "  "), r.LSN, same, r.digests()))
	for _, w := range r.Wrong {
		out = append(out, "WRONG: "+w)
	}
	return out
}

// tell prints the verdict.
func (d *demo) tell() {
	word := "every promise was kept"
	switch {
	case !d.report.Sound && d.Broken:
		word = "NOT SOUND, as it must be when the protection is taken away"
	case !d.report.Sound:
		word = "NOT SOUND"
	}
	d.stage(stages, "verdict: %s   (%.0f s: %s)", word, d.report.Seconds, d.report.parts())
	for _, l := range append(d.report.lines(), d.report.plainly()...) {
		d.screen.Say("%s", l)
	}
	if d.Keep {
		return
	}
	program := cmp.Or(d.Program, "coterie")
	d.screen.Say("three commands to try next:")
	for _, l := range [][2]string{
		{"demo --keep", "the same, and the group is left running"},
		{"lab up", "a group to break yourself: docs/tutorials/break-it.md"},
		{"init --group orders", "a real one, on the first of three machines"},
	} {
		d.screen.Say("  %-30s # %s", program+" "+l[0], l[1])
	}
}

// parts returns how long each part took, as text.
func (r *Report) parts() string {
	var all []string
	for _, p := range r.Parts {
		all = append(all, fmt.Sprintf("%s %.0f", p.Name, p.Seconds))
	}
	return strings.Join(all, ", ")
}

// tellKept prints the commands for the group that was left running.
func (d *demo) tellKept() {
	d.screen.Doing(nil)
	first := d.lab.Nodes()[0]
	for _, l := range []string{
		"the group is left running:",
		"  psql '" + d.lab.ReadWrite() + "'",
		"  coterie lab status --dir " + d.Dir,
		"  coterie status --node " + d.lab.Dir(first),
		"  coterie lab kill " + first + " --dir " + d.Dir + "   and   coterie lab start " + first + " --dir " + d.Dir,
		"  coterie explain --node " + d.lab.Dir(first),
		"to end it: coterie lab down --dir " + d.Dir,
	} {
		d.screen.Say("%s", l)
	}
}

func tellConditions(found []finding) string {
	if v := violated(found); v != "" {
		return v
	}
	var names []string
	n := 0
	for _, f := range found {
		names = append(names, f.node)
		n = len(f.conditions)
	}
	return fmt.Sprintf("all %d consistency conditions hold on %s", n, strings.Join(names, " "))
}

func violated(found []finding) string {
	var bad []string
	for _, f := range found {
		for _, c := range f.conditions {
			if c.Violations > 0 {
				bad = append(bad, fmt.Sprintf("condition %d (%s) is violated on %s: %s", c.Number, c.Name, f.node, c.Sample))
			}
		}
	}
	return strings.Join(bad, "; ")
}
