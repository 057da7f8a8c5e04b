package crashpoints

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Scenario is something that is done to a group, and the points to which its processes come.
type Scenario struct {
	Name   string
	Points []string
}

// Scenarios has every point of the program in one scenario.
var Scenarios = []Scenario{
	{"planned failover", []string{
		"handover.asked", "takeover.preset", "handover.drained", "handover.quiet", "handover.stopped", "handover.flushed", "handover.named",
		"handover.disarmed", "handover.unclosed", "keeper.disarmed",
	}},
	{"the primary's node dies", []string{
		"record.unwritten", "record.claimed", "seal.promised", "seal.closed", "record.chosen", "promote.promised", "promote.sealed", "promote.protected",
		"promote.armed", "promote.marked", "promote.skipped", "promote.left", "promote.promoted", "record.led", "lead.streams", "follow.promised", "keeper.armed",
	}},
	{"a secondary's node dies and comes back", []string{
		"record.state", "sync.announced", "sync.altered", "sync.reloaded", "sync.inforce", "sync.waiting", "sync.proven",
	}},
	{"the primary's server dies", []string{
		"lead.ended", "record.released", "keeper.recorded", "keeper.settled", "keeper.emptied", "keeper.noted", "keeper.signal", "keeper.forked",
	}},
	{"another program changes a reserved setting", []string{"fence.shut", "fence.fenced"}},
	{"the primary's agent restarts in place", []string{
		"restart.announced", "restart.rested", "keeper.detached", "restart.detached", "attach.renewed", "attach.extended", "attach.rewritten",
	}},
	{"the primary's server restarts in place", []string{
		"again.drained", "again.quiet", "again.stopped", "limits.noted", "keeper.unsignalled", "again.started", "again.inforce",
	}},
	{"a diverged primary comes back", []string{
		"repair.stopped", "rewind.kept", "rewind.marked", "rewind.begun", "rewind.nosignal", "rewind.recovered", "rewind.phase", "rewind.ran", "rewind.finish",
		"rewind.conf", "rewind.signal", "rewind.done", "copy.inside", "copy.marked", "copy.unpromoted",
	}},
	{"a new copy is asked for", []string{
		"seed.asked", "seed.marked", "seed.disabled", "seed.unfinished", "seed.copied", "seed.filled", "seed.flushed", "seed.installed", "seed.unforgotten", "seed.done",
	}},
	{"the authority is rotated", []string{
		"rotate.key", "rotate.fetched", "rotate.changed", "rotate.done", "rotate.preferred", "renew.written",
	}},
	{"a lost member is replaced", []string{"replace.removed"}},
	{"the quorum's store of a member is damaged", []string{"vote.replaced", "vote.uncounted", "vote.unmarked"}},
	{"a member is removed and joins again", []string{
		"remove.suspended", "remove.dropped", "remove.unvoted", "remove.unlisted", "remove.settled", "admit.spent", "admit.listed",
		"join.identity", "join.listener", "join.group", "vote.learner", "vote.unnamed", "vote.launched", "vote.promoted",
	}},
	{"a group is founded", []string{
		"found.authority", "found.copy", "found.founding", "found.group", "found.launched", "found.bootstrapped",
	}},
	{"a member leaves with its data", []string{
		"leave.removed", "leave.recorded", "leave.signalled", "leave.unsignalled", "leave.recovered", "leave.unmarked", "leave.moved", "leave.renamed",
	}},
	{"a node is destroyed", []string{"destroy.keyless", "destroy.dataless", "destroy.bare", "destroy.empty"}},
	{"a major upgrade by blue/green", []string{
		"green.begun", "green.empty", "green.defined", "green.subscribed", "green.ready", "switch.drained", "switch.quiet", "switch.stopped",
	}},
	{"the way back from an upgrade by blue/green", []string{"return.started", "return.following", "return.ready", "return.ended"}},
	{"a major upgrade", []string{
		"major.announced", "major.asked", "major.begun", "major.upgraded", "major.made", "major.passed", "major.marked", "major.named",
		"major.following", "major.unfinished", "major.dropped",
	}},
	{"a cluster is adopted", []string{
		"adopt.rules", "adopt.recorded", "adopt.signal", "adopt.disabled", "adopt.cleaned", "adopt.listed", "adopt.changed",
	}},
}

// Point is a place in the code.
type Point struct {
	Name    string
	Meaning string // the comment behind it
	Package string
	Func    string // the function it is in
}

var (
	call     = regexp.MustCompile(`^\s*fault\.Point\((.*?)\)(?: +// (.+))?$`)
	function = regexp.MustCompile(`^func (?:\(\w+ \*?(\w+)\) )?(\w+)`)
)

// Find returns the points of the program whose source is in root, by name.
func Find(root string) ([]Point, error) {
	var all []Point
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path) //nolint:gosec // of this source tree
		if err != nil {
			return err
		}
		in := ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\n")
			if m := function.FindStringSubmatch(line); m != nil {
				in = strings.TrimPrefix(m[1]+"."+m[2], ".")
			}
			m := call.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			if m[2] == "" || !strings.HasPrefix(m[1], `"`) {
				return fmt.Errorf("%s: %q: a point has a literal name, and a comment behind it says what is written and what is not", path, strings.TrimSpace(line))
			}
			all = append(all, Point{strings.Trim(m[1], `"`), m[2], filepath.Base(filepath.Dir(path)), in})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the crash points: %w", err)
	}
	slices.SortFunc(all, func(a, b Point) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Page returns the documentation of the points.
func Page(points []Point) string {
	by := map[string]Point{}
	for _, p := range points {
		by[p.Name] = p
	}
	var b strings.Builder
	b.WriteString(head)
	for _, s := range Scenarios {
		fmt.Fprintf(&b, "\n## %s\n\n| point | where | what is written, and what is not |\n|---|---|---|\n", strings.ToUpper(s.Name[:1])+s.Name[1:])
		for _, name := range s.Points {
			p := by[name]
			fmt.Fprintf(&b, "| %s | `%s` in package `%s` | %s |\n", name, p.Func, p.Package, p.Meaning)
		}
	}
	return b.String()
}

const head = `# Crash points

Places at which a process has written one thing and not yet the other. ` + "`make crashpoints`" + ` runs real groups under load, ends the process that comes to a point by SIGKILL,
starts it again as a service manager does, waits until the group is whole, and compares every row with what the writer was told. A point to which no run came fails the target.
A point does nothing in a program that is released: only a program linked for the test can be armed (package ` + "`fault`" + `).

This page is generated from the code: ` + "`go test ./internal/test/crashpoints -update`" + `.
`
