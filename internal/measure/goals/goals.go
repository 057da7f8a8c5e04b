package goals

import (
	"bytes"
	_ "embed" // the goals
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

//go:embed goals.json
var goalsJSON []byte

// Goal is the value that one figure is meant to reach. A goal is checked in and is never changed together with the code
// that it measures.
type Goal struct {
	Bench  string  `json:"bench"` // the command that measures it: make bench-<bench>
	Name   string  `json:"name"`
	Goal   float64 `json:"goal"`
	Better string  `json:"better"` // lower or higher; stated: the figure is printed beside the others and has no goal
	Unit   string  `json:"unit"`
	Ratio  bool    `json:"ratio,omitempty"` // "not slower than": refuted only by an interval that excludes the goal
	What   string  `json:"what"`            // a sentence for the documentation
}

// stated marks a figure without a goal.
const stated = "stated"

// Goals returns the checked-in goals, in the order in which reports print them.
var Goals = sync.OnceValues(func() ([]Goal, error) { return parseGoals(goalsJSON) })

func parseGoals(text []byte) ([]Goal, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var goals []Goal
	if err := d.Decode(&goals); err != nil {
		return nil, fmt.Errorf("read goals.json: %w", err)
	}
	seen := map[string]bool{}
	for _, g := range goals {
		switch {
		case g.Bench == "" || g.Name == "" || g.Unit == "" || g.What == "" || strings.ContainsAny(g.Name, " \t"):
			return nil, fmt.Errorf("goals.json: goal %q of %q is incomplete", g.Name, g.Bench)
		case g.Better != "lower" && g.Better != "higher" && (g.Better != stated || g.Goal != 0):
			return nil, fmt.Errorf("goals.json: goal %q of %v: better is %q, want lower or higher, or stated without a goal", g.Name, g.Goal, g.Better)
		case seen[g.Name]:
			return nil, fmt.Errorf("goals.json: goal %q is there twice", g.Name)
		}
		seen[g.Name] = true
	}
	return goals, nil
}

// met judges a figure by its median. Where the goal is not to be slower than something else, it takes the better side
// of the interval for it, since that is refuted only by an interval that excludes it.
func (g Goal) met(f Figure) bool {
	v := f.Measured
	lower := g.Better == "lower"
	if g.Ratio && f.HasInterval {
		if lower {
			v = f.Low
		} else {
			v = f.High
		}
	}
	if lower {
		return v <= g.Goal
	}
	return v >= g.Goal
}

func (g Goal) sign() string {
	if g.Better == "lower" {
		return "≤"
	}
	return "≥"
}

// Figure is one measurement, or the reason why it was not made.
type Figure struct {
	Name        string // of its Goal
	Measured    float64
	Low, High   float64 // interval of Measured, if HasInterval
	HasInterval bool
	NotRun      string // why it was not measured
}

// Report prints the figures of one bench against its goals, a line each: NAME measured [interval] goal → verdict; and a
// last line that sums up. A goal without a figure is printed as not run. It returns whether every goal was measured and
// met.
func Report(w io.Writer, bench string, figures []Figure) (met bool, err error) {
	goals, err := Goals()
	if err != nil {
		return false, err
	}
	return report(w, goals, bench, figures)
}

func report(w io.Writer, goals []Goal, bench string, figures []Figure) (met bool, err error) {
	given := map[string]Figure{}
	for _, f := range figures {
		if _, twice := given[f.Name]; twice {
			return false, fmt.Errorf("figure %q is there twice", f.Name)
		}
		given[f.Name] = f
	}
	var out strings.Builder
	var short, notRun []string
	n := 0
	for _, g := range goals {
		if g.Bench != bench {
			continue
		}
		if g.Better != stated {
			n++
		}
		f, ok := given[g.Name]
		if !ok {
			f.NotRun = "no figure was recorded"
		}
		delete(given, g.Name)
		line, verdict := g.line(f), "met"
		switch {
		case f.NotRun != "":
			verdict = "not run: " + f.NotRun
			notRun = append(notRun, g.Name)
		case g.Better == stated:
			verdict = stated
		case !g.met(f):
			verdict = "short of goal"
			short = append(short, g.Name)
		}
		fmt.Fprintf(&out, "%s → %s\n", line, verdict)
	}
	for name := range given {
		return false, fmt.Errorf("figure %q has no goal in bench %q: add it to goals.json first", name, bench)
	}
	if n == 0 {
		return false, errors.New("no goals for bench " + strconv.Quote(bench))
	}
	fmt.Fprintln(&out, sum(n, short, notRun))
	_, err = io.WriteString(w, out.String())
	return len(short)+len(notRun) == 0, err
}

func (g Goal) line(f Figure) string {
	goal := "-"
	if g.Better != stated {
		goal = fmt.Sprintf("%s %s %s", g.sign(), number(g.Goal), g.Unit)
	}
	if f.NotRun != "" {
		return fmt.Sprintf("%-30s %-32s %s", g.Name, "-", goal)
	}
	measured := number(f.Measured) + " " + g.Unit
	if f.HasInterval {
		measured += fmt.Sprintf(" [%s, %s]", number(f.Low), number(f.High))
	}
	return fmt.Sprintf("%-30s %-32s %s", g.Name, measured, goal)
}

// number prints three significant digits, and whole numbers whole.
func number(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	if v >= 100 || v <= -100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

func sum(n int, short, notRun []string) string {
	if len(short)+len(notRun) == 0 {
		return fmt.Sprintf("all %d figures met", n)
	}
	var parts []string
	if len(short) > 0 {
		parts = append(parts, "short of goal: "+strings.Join(short, ", "))
	}
	if len(notRun) > 0 {
		parts = append(parts, "not run: "+strings.Join(notRun, ", "))
	}
	return strings.Join(parts, "; ")
}
