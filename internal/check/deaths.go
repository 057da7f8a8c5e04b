package check

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
)

// without is what the group would be like after a death that it does not survive.
var without = map[availability.Outcome]string{
	availability.Blocked: "commits would wait",
	availability.Stops:   "no primary would take writes",
}

// fewer is why such a finding matters.
const fewer = "the group survives fewer failures than it was made for"

// Survives returns in one sentence, without its subject, whose death the group survives now and whose it does not; "":
// nothing is known, or no member answers. A member that is dead already is left out.
func Survives(failures []availability.Failure) string {
	of := map[availability.Outcome][]ag.ReplicaID{}
	for _, f := range failures {
		of[f.Outcome] = append(of[f.Outcome], f.Member)
	}
	var parts []string
	for _, o := range []availability.Outcome{availability.Blocked, availability.Stops} {
		if len(of[o]) > 0 {
			parts = append(parts, fmt.Sprintf("of %s: %s", names(of[o], "or"), without[o]))
		}
	}
	no := strings.Join(parts, "; ")
	yes := names(of[availability.Survived], "")
	if len(of[availability.Survived]) > 1 {
		yes = "any one of " + yes
	}
	switch {
	case yes != "" && no != "":
		return "survives the death of " + yes + "; not " + no
	case yes != "":
		return "survives the death of " + yes
	case no != "":
		return "does not survive the death " + no
	}
	return ""
}

// names returns a list for people, with a word before the last one; "": only commas.
func names(ids []ag.ReplicaID, last string) string {
	var out strings.Builder
	for i, id := range ids {
		switch {
		case i == 0:
		case i == len(ids)-1 && last != "":
			out.WriteString(" " + last + " ")
		default:
			out.WriteString(", ")
		}
		out.WriteString(string(id))
	}
	return out.String()
}

// Then returns what would follow the death of a member, or that it is dead already.
func Then(f availability.Failure) string {
	switch {
	case f.Because != "":
		return f.Because
	case f.Primary != "":
		return string(f.Primary) + " would lead, and commits would be acknowledged"
	}
	return "-"
}

// findDeaths returns what the death of each member would lead to now. None of it is a fault by itself: what is wrong is
// among the problems. Beside such, a death that is not survived is a warning.
func findDeaths(ctx context.Context, cl *api.Client, beside Level) ([]Finding, error) {
	rows, err := rowsOf(ctx, cl, "SELECT member, outcome, primary_replica, because FROM coterie.failures")
	if err != nil {
		return nil, err
	}
	var failures []availability.Failure
	for _, r := range rows {
		f := availability.Failure{Member: ag.ReplicaID(fmt.Sprint(r[0])), Outcome: availability.Outcome(fmt.Sprint(r[1]))}
		if r[2] != nil {
			f.Primary = ag.ReplicaID(fmt.Sprint(r[2]))
		}
		if r[3] != nil {
			f.Because = fmt.Sprint(r[3])
		}
		failures = append(failures, f)
	}
	var out []Finding
	all := OK
	for _, f := range failures {
		x := Finding{Level: OK, What: fmt.Sprintf("if %s died now: %s: %s", f.Member, f.Outcome, Then(f))}
		if f.Outcome != availability.Survived && beside != OK {
			x.Level, x.Why, x.Run, all = Warning, fewer, "coterie status; coterie explain", Warning
		}
		out = append(out, x)
	}
	if what := Survives(failures); what != "" {
		x := Finding{Level: all, What: "the group " + what}
		if all != OK {
			x.Why, x.Run = fewer, "coterie status; coterie explain"
		}
		out = slices.Insert(out, 0, x)
	}
	return out, nil
}
