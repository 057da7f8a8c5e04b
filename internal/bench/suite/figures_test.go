package suite

import (
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/measure/goals"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// TestFiguresOfExperimentsHaveGoals: for any result of a run, its figures are those of the goals, each once.
func TestFiguresOfExperimentsHaveGoals(t *testing.T) {
	lines := func(r *benchreport.Report) string {
		t.Helper()
		var out strings.Builder
		if _, err := goals.Report(&out, "experiments", ExperimentFigures(r)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if s := lines(&benchreport.Report{}); strings.Contains(s, "no figure was recorded") || strings.Contains(s, "met\n") {
		t.Errorf("of an empty report:\n%s", s)
	}
	ratio := func(name string, low, ratio, high float64) benchreport.Comparison {
		return benchreport.Comparison{Name: name, Comparison: method.Comparison{Ratio: ratio, Low: low, High: high, Verdict: method.Faster}}
	}
	s := lines(&benchreport.Report{Experiments: []benchreport.Experiment{
		{Name: "routing", Comparisons: []benchreport.Comparison{ratio("12 threads", 2.4, 2.6, 2.7)}},
		{Name: "commit", Comparisons: []benchreport.Comparison{ratio("ZSTD 1 × 1000000", 1, 1.05, 1.2), ratio("ZSTD 100 × 10000", 1, 1.5, 1.6), ratio("ZSTD 1 × 20000", 2, 3, 4), ratio("ZSTD 200 × 1", 3, 4, 5)}},
		{Name: "tunnel", Comparisons: []benchreport.Comparison{ratio("constant rows", 0.4, 0.5, 0.8)}},
		{Name: "tprocc", NotRun: "a\nreason"},
	}})
	for _, want := range []string{"2.6 x [2.4, 2.7]", "50 % [0, 60]", "2 x [1.25, 2.5]", "not run: a; reason", "this run had no 1 thread"} {
		if !strings.Contains(s, want) {
			t.Errorf("no %q in\n%s", want, s)
		}
	}
}

func TestMatrixCells(t *testing.T) {
	for _, total := range []int{1, 10, 500, 20_000, 1_000_000} {
		list := MatrixCells(total)
		if list[0].Inserts != 1 || list[0].Rows != total {
			t.Errorf("%d rows: the first cell is %v", total, list[0])
		}
		if last := list[len(list)-1]; last.Rows != 1 || last.Inserts > max(500, min(total, 2000)) {
			t.Errorf("%d rows: the last cell is %v", total, last)
		}
	}
}
