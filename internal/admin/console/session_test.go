package console

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// TestResultsAreJSON holds that the answer to every query can be written as JSON: a number that JSON does not have is
// PostgreSQL's text of it, and the result itself is not changed.
func TestResultsAreJSON(t *testing.T) {
	t.Parallel()
	s := NewSession(newWorld(t), Principal{"me", ddl.MayLook})
	for _, text := range []string{"SELECT CAST(1e308 AS float) * 10 AS x", "SELECT 1, CAST(-1e308 AS float) * 10 AS x"} {
		r, err := s.Run(t.Context(), text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		b, err := json.Marshal(r)
		if err != nil || !strings.Contains(string(b), `Infinity"]`) {
			t.Errorf("%s: %v, %s", text, err, b)
		}
		if x, is := r.Rows[0][len(r.Rows[0])-1].(float64); !is || !math.IsInf(x, 0) {
			t.Errorf("%s: %v", text, r.Rows)
		}
	}
	if b, err := json.Marshal(Result{Rows: [][]any{{1.5}, {math.NaN(), "x"}}}); err != nil || !strings.Contains(string(b), `[[1.5],["NaN","x"]]`) {
		t.Errorf("%v, %s", err, b)
	}
}
