package console

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/ddl"
)

// TestHintQuotesTheUser holds that the statement which a refusal proposes is about the user, whatever its name is.
func TestHintQuotesTheUser(t *testing.T) {
	t.Parallel()
	_, err := NewSession(newWorld(t), Principal{User: `x"; DROP ROLE y --`, May: ddl.MayLook}).Run(t.Context(), "RESUME REPLICA 'b'")
	var refused *Error
	if !errors.As(err, &refused) || !strings.HasPrefix(refused.Hint, `GRANT coterie_operator TO "x""; DROP ROLE y --", in`) {
		t.Errorf("%+v", err)
	}
}

// TestSetTakesAnyBlank holds that SET and RESET are followed by a blank of any kind, and that the tag is the word.
func TestSetTakesAnyBlank(t *testing.T) {
	t.Parallel()
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
	run := func(text, tag string) {
		if r, err := s.Run(t.Context(), text); err != nil || r.Tag != tag {
			t.Errorf("%q: %q, %v", text, r.Tag, err)
		}
	}
	zone := func(want string) {
		if r, err := s.Run(t.Context(), "SHOW TimeZone"); err != nil || r.Rows[0][0] != want {
			t.Errorf("the time zone is %v, want %s: %v", r.Rows, want, err)
		}
	}
	for _, text := range []string{"SET\nTimeZone = 'Europe/Berlin'", "SET\tTimeZone TO 'Europe/Berlin'", "set\r\nTIME\tZONE 'Europe/Berlin'", "SET  SESSION\nTimeZone='Europe/Berlin'"} {
		run(text, "SET")
		zone("Europe/Berlin")
		run("RESET\nTimeZone", "RESET")
		zone("UTC")
	}
}

// TestResultsAreJSON holds that the answer to every query can be written as JSON: a number that JSON does not have is
// PostgreSQL's text of it, and the result itself is not changed.
func TestResultsAreJSON(t *testing.T) {
	t.Parallel()
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
	for _, text := range []string{"SELECT 1e999 AS x", "SELECT 1, -1e999 AS x"} {
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
