package check

import (
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
)

func TestSurvives(t *testing.T) {
	t.Parallel()
	f := func(id ag.ReplicaID, o availability.Outcome) availability.Failure {
		return availability.Failure{Member: id, Outcome: o}
	}
	for want, failures := range map[string][]availability.Failure{
		"": {f("n1", availability.Gone)},
		"survives the death of any one of n1, n2, n3":                                                         {f("n1", availability.Survived), f("n2", availability.Survived), f("n3", availability.Survived)},
		"survives the death of n2":                                                                            {f("n1", availability.Gone), f("n2", availability.Survived)},
		"does not survive the death of n2: commits would wait":                                                {f("n2", availability.Blocked)},
		"survives the death of w; not of n1 or n2: no primary would take writes":                              {f("n1", availability.Stops), f("n2", availability.Stops), f("w", availability.Survived)},
		"does not survive the death of n2, n3 or n4: commits would wait; of n1: no primary would take writes": {f("n1", availability.Stops), f("n2", availability.Blocked), f("n3", availability.Blocked), f("n4", availability.Blocked)},
	} {
		if got := Survives(failures); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFindGroupTellsEachDeath holds that coterie check group has the list of what each death would do, below what is
// wrong, and that a node which was removed forecasts nothing.
func TestFindGroupTellsEachDeath(t *testing.T) {
	t.Parallel()
	a := node(t, "")
	a.OnSQL("", []string{"none"})
	a.OnSQL("FROM coterie.failures", []string{"member", "outcome", "primary_replica", "because"},
		[]any{"n1", "SURVIVED", "n2", nil}, []any{"n2", "BLOCKED", "n1", "n1 would lead, and commits wait for 1 of n2"}, []any{"n3", "DOWN", nil, "it does not answer"})
	found, err := FindGroup(t.Context(), a.Layout.Dir)
	if err != nil || Worst(found) != OK {
		t.Fatalf("%+v, %v", found, err)
	}
	for _, want := range []string{
		"the group takes writes, acknowledges commits, and misses nothing",
		"the group survives the death of n1; not of n2: commits would wait",
		"if n1 died now: SURVIVED: n2 would lead, and commits would be acknowledged",
		"if n2 died now: BLOCKED: n1 would lead, and commits wait for 1 of n2",
		"if n3 died now: DOWN: it does not answer",
	} {
		if !slices.ContainsFunc(found, func(f Finding) bool { return f.What == want }) {
			t.Errorf("no %q in %+v", want, found)
		}
	}
	a.OnSQL("FROM coterie.problems", []string{"severity", "finding", "run"}, []any{"Warning", "n3 does not answer", nil})
	found, err = FindGroup(t.Context(), a.Layout.Dir)
	for what, want := range map[string]Level{"if n1 died": OK, "if n2 died": Warning, "the group survives": Warning} {
		if !slices.ContainsFunc(found, func(f Finding) bool { return strings.HasPrefix(f.What, what) && f.Level == want }) {
			t.Errorf("%s is no %s beside a problem: %+v, %v", what, want, found, err)
		}
	}
	a.OnSQL("FROM coterie.problems", []string{"severity", "finding", "run"}, []any{"Critical", removed, nil})
	if found, err = FindGroup(t.Context(), a.Layout.Dir); err != nil || len(found) != 1 {
		t.Errorf("%+v, %v", found, err)
	}
}
