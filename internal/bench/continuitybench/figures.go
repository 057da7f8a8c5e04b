package continuitybench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
)

// of returns the runs of an arm.
func (s *Samples) of(a Arm) (out []Run) {
	for _, r := range s.Runs {
		if r.Arm == a {
			out = append(out, r)
		}
	}
	return out
}

// number returns a figure of n measurements; why is the reason if there are none.
func number(name string, value float64, n int, why string) goals.Figure {
	if n == 0 {
		return goals.Figure{Name: name, NotRun: why}
	}
	return goals.Figure{Name: name, Measured: value}
}

// percentile returns a percentile of all holds of some runs, in seconds.
func percentile(name string, runs []Run, p int, why string) goals.Figure {
	var all []float64
	for _, r := range runs {
		all = append(all, r.HoldMS...)
	}
	if len(all) == 0 {
		return goals.Figure{Name: name, NotRun: why}
	}
	return goals.Figure{Name: name, Measured: method.Nearest(all, p) / 1000}
}

// percent returns a share as a figure.
func percent(name string, part, of int, why string) goals.Figure {
	if of == 0 {
		return goals.Figure{Name: name, NotRun: why}
	}
	return goals.Figure{Name: name, Measured: 100 * float64(part) / float64(of)}
}

// judge makes the figures of the samples. why is the reason for missing ones.
func (s *Samples) judge(why string) {
	planned := s.of(ArmPlanned)
	var errors, lost, broken int
	var wrong int64
	for _, r := range planned {
		errors, lost, broken = errors+r.failed(), lost+r.LostConnections, broken+len(r.Broken)
	}
	judged := 0
	for _, r := range s.Runs {
		wrong += r.Wrong
		if r.Judged {
			judged++
		}
	}
	n := len(planned)
	s.Figures = []goals.Figure{
		number("continuity-planned-errors", float64(errors), n, why), number("continuity-planned-lost", float64(lost), n, why),
		number("continuity-planned-states", float64(broken), n, why),
		percentile("continuity-planned-hold-p50", planned, 50, why), percentile("continuity-planned-hold-p95", planned, 95, why),
		percentile("continuity-planned-hold-p99", planned, 99, why), percentile("continuity-planned-hold-max", planned, 100, why),
	}
	unresolved, doubtful := 0, 0
	for _, a := range []Arm{ArmNode, ArmServer} {
		runs := s.of(a)
		var kept, sessions, succeeded, open, states int
		for _, r := range runs {
			k, of := r.kept()
			kept, sessions, succeeded, open, states = kept+k, sessions+of, succeeded+r.Succeeded, open+r.Open, states+len(r.Broken)
			unresolved += r.Unresolved
			for _, n := range r.Doubtful {
				doubtful += n
			}
		}
		name := "continuity-" + string(a)
		s.Figures = append(s.Figures, percent(name+"-kept", kept, sessions, why), number(name+"-states", float64(states), len(runs), why),
			percent(name+"-succeeded", succeeded, open, why), percentile(name+"-hold-p50", runs, 50, why), percentile(name+"-hold-p99", runs, 99, why))
	}
	s.Figures = append(s.Figures, percent("continuity-doubt-unresolved", unresolved, doubtful, why),
		number("continuity-wrong", float64(wrong), judged, why))
	s.costFigures(cmp.Or(s.Missing[string(ArmCost)], why))
}

func (s *Samples) costFigures(why string) {
	names := []string{"continuity-cost-own", "continuity-cost-relayed", "continuity-cost-replay", "continuity-cost-with"}
	if s.Cost == nil {
		for _, name := range append(names, "continuity-idle-bytes") {
			s.Figures = append(s.Figures, goals.Figure{Name: name, NotRun: why})
		}
		return
	}
	own, relayed, replay, with := s.Cost.Slower()
	for i, c := range []method.Comparison{own, relayed, replay, with} {
		if c.Blocks == 0 {
			s.Figures = append(s.Figures, goals.Figure{Name: names[i], NotRun: "--with was not given"})
			continue
		}
		if c.Verdict == method.Withheld {
			s.Figures = append(s.Figures, goals.Figure{Name: names[i], NotRun: c.Why})
			continue
		}
		s.Figures = append(s.Figures, goals.Figure{Name: names[i], Measured: 100 * (1 - c.Ratio), Low: 100 * (1 - c.High), High: 100 * (1 - c.Low), HasInterval: true})
	}
	s.Figures = append(s.Figures, number("continuity-idle-bytes", s.Cost.IdleBytes(), s.Cost.Sessions, why))
}

// Wrong returns how many answers were wrong.
func (s *Samples) Wrong() (n int64) {
	for _, r := range s.Runs {
		n += r.Wrong
	}
	return n
}

// Print writes what was seen, arm by arm, and the figures with their goals.
func (s *Samples) Print(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "server: %s; %d cores, Linux %s, load %s\n", s.Server, s.Machine.Cores, s.Machine.Kernel, s.Machine.Load)
	for _, k := range slices.Sorted(maps.Keys(s.Settings)) {
		fmt.Fprintf(&out, "%s: %s\n", k, s.Settings[k])
	}
	for _, a := range []Arm{ArmPlanned, ArmNode, ArmServer} {
		if runs := s.of(a); len(runs) > 0 {
			printArm(&out, a, runs)
		}
	}
	s.printCost(&out)
	for _, k := range slices.Sorted(maps.Keys(s.Missing)) {
		fmt.Fprintf(&out, "not measured: %s: %s\n", k, s.Missing[k])
	}
	if _, err := io.WriteString(w, out.String()); err != nil {
		return err
	}
	_, err := goals.Report(w, "continuity", s.Figures)
	return err
}

func printArm(out *strings.Builder, a Arm, runs []Run) {
	kept, errors, lost, open, doubtful, before := map[string]keptOf{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	add := func(to, from map[string]int) {
		for k, n := range from {
			to[k] += n
		}
	}
	var succeeded, opened int
	for _, r := range runs {
		for way, k := range r.Kept {
			kept[way] = keptOf{kept[way].Sessions + k.Sessions, kept[way].Kept + k.Kept}
		}
		add(errors, r.Errors)
		add(lost, r.LostBy)
		add(open, r.OpenBy)
		add(doubtful, r.Doubtful)
		succeeded, opened = succeeded+r.Succeeded, opened+r.Open
		for _, p := range r.Before {
			if why := p.why(a); why != "KEPT" {
				before[why] += p.Sessions
			}
		}
	}
	fmt.Fprintf(out, "%s, %d faults:\n", a, len(runs))
	for _, way := range slices.Sorted(maps.Keys(kept)) {
		fmt.Fprintf(out, "  sessions by %-24s %d of %d kept\n", way+":", kept[way].Kept, kept[way].Sessions)
	}
	fmt.Fprintf(out, "  errors %s; connections lost %s\n", words(errors), words(lost))
	if a != ArmPlanned {
		fmt.Fprintf(out, "  open transactions: %d, succeeded %d, others %s\n  COMMITs in doubt, by their answer: %s\n", opened, succeeded, words(open), words(doubtful))
		fmt.Fprintf(out, "  right before, the group said of sessions: %s\n", words(before))
	}
	for _, r := range runs {
		for _, text := range r.Broken {
			fmt.Fprintf(out, "  run %d: %s\n", r.Run, text)
		}
		if r.Wrong > 0 {
			fmt.Fprintf(out, "  run %d: WRONG: %v; sums %v; rows %v\n", r.Run, r.Verdict, r.Sums, r.Rows)
		}
	}
}

// why returns KEPT, or why sessions would not outlive the fault of the arm.
func (p prospect) why(a Arm) string {
	if a == ArmNode {
		return p.NodeLoss
	}
	return p.ServerLoss
}

// words lists counts, the largest first.
func words(m map[string]int) string {
	if len(m) == 0 {
		return "none"
	}
	keys := slices.SortedFunc(maps.Keys(m), func(a, b string) int { return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b)) })
	var parts []string
	for _, k := range keys {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}

func (s *Samples) printCost(out *strings.Builder) {
	if s.Cost == nil {
		return
	}
	if s.Cost.With != "" {
		fmt.Fprintf(out, "the other program: %s\n", s.Cost.With)
	}
	fmt.Fprintf(out, "%-24s %10s %22s\n", "prepared TPC-B, 8 clients", "tps", "listener's CPU s/100k")
	for _, arm := range slices.Sorted(maps.Keys(s.Cost.TPS)) {
		fmt.Fprintf(out, "%-24s %10.0f %22.2f\n", arm, method.Median(s.Cost.TPS[arm]), method.Median(s.Cost.CPU[arm]))
	}
	for _, arm := range slices.Sorted(maps.Keys(s.Cost.Idle)) {
		fmt.Fprintf(out, "an idle session, %s: %.0f bytes\n", arm, s.Cost.Idle[arm])
	}
}
