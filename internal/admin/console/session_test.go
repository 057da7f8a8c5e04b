package console

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

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

// TestStatementTimeout holds that a client's statement_timeout ends its statements, as long as it is set.
func TestStatementTimeout(t *testing.T) {
	t.Parallel()
	s := NewSession(slow{newWorld(t)}, Principal{User: "me", May: ddl.MayAdminister})
	late := 0
	s.limits.Statement, s.late = time.Minute, func() { late++ }
	run := func(text, want string) {
		t.Helper()
		got := ""
		if _, err := s.Run(t.Context(), text); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for _, set := range []string{"SET statement_timeout = '10ms'", "SET statement_timeout TO 5", "SET statement_timeout = 1us", "BEGIN; SET LOCAL statement_timeout = '0.01 s'"} {
		run(set, "")
		run("SELECT forever", "canceling statement due to statement timeout")
		run("ROLLBACK; RESET statement_timeout", "")
	}
	for set, want := range map[string]time.Duration{
		"BEGIN; SET LOCAL statement_timeout = 7; COMMIT": 0, "SET LOCAL statement_timeout = 7": 0, "SET statement_timeout = '2min'": 2 * time.Minute,
		"SET statement_timeout = 7; DISCARD ALL": 0, "SET statement_timeout = 7; RESET ALL": 0, "SET statement_timeout = 7; SET statement_timeout TO DEFAULT": 0,
	} {
		if run(set, ""); s.timeout() != want {
			t.Errorf("%s: %v, want %v", set, s.timeout(), want)
		}
		run("RESET ALL", "")
	}
	for _, bad := range []string{"soon", "-1", "10 parsecs", "1e300d"} {
		run("SET statement_timeout = '"+bad+"'", `invalid value for parameter "statement_timeout"`)
	}
	if late != 0 {
		t.Errorf("%d were counted as too long for the console", late)
	}
}

// TestSetSaysThatNothingHappens holds that a setting which no client sends on its own is answered with a notice, and a
// word that neither language has with an error.
func TestSetSaysThatNothingHappens(t *testing.T) {
	t.Parallel()
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
	for text, notices := range map[string]int{
		"SET foo = 1": 1, "SET work_mem TO '64MB'": 1, "SET extra_float_digits = 3": 0, "SET lock_timeout = 0": 0, "SET my.own = 1": 0,
		"SET NOCOUNT ON": 0, "SET ANSI_NULLS, QUOTED_IDENTIFIER ON": 0, "SET STATISTICS IO ON": 0, "SET TRAN ISOLATION LEVEL READ UNCOMMITTED": 0,
	} {
		if r, err := s.Run(t.Context(), text); err != nil || len(r.Notices) != notices {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
	}
	for _, text := range []string{"SET foo", "SET foo ON"} {
		if _, err := s.Run(t.Context(), text); err == nil || !strings.Contains(err.Error(), text+" is not known") {
			t.Errorf("%s: %v", text, err)
		}
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

// TestSettingsEndWithTheirTransaction holds that SET LOCAL ends with its transaction, also for a name that was not set
// before, that SET ends with one that is rolled back, and that it stays after COMMIT.
func TestSettingsEndWithTheirTransaction(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"BEGIN; SET LOCAL app.x = 'a'; COMMIT":                                "none",
		"BEGIN; SET LOCAL app.x = 'a'; ROLLBACK":                              "none",
		"BEGIN; SET app.x = 'a'; COMMIT":                                      "a",
		"BEGIN; SET app.x = 'a'; ROLLBACK":                                    "none",
		"SET app.x = 'a'; BEGIN; SET app.x = 'b'; ROLLBACK":                   "a",
		"SET app.x = 'a'; BEGIN; SET LOCAL app.x = 'b'; COMMIT":               "a",
		"BEGIN; SET LOCAL app.x = 'a'; SET app.x = 'b'; COMMIT":               "b",
		"BEGIN; SET app.x = 'a'; SET LOCAL app.x = 'b'; COMMIT":               "a",
		"SET app.x = 'a'; BEGIN; RESET ALL; ROLLBACK":                         "a",
		"SET app.x = 'a'; BEGIN; SET app.x = 'b'; BEGIN; ROLLBACK":            "a",
		"SET app.x = 'a'; BEGIN; SET app.x = 'b'; SELECT bad syntax; COMMIT":  "a",
		"BEGIN; SET LOCAL TIME ZONE 'Europe/Berlin'; COMMIT; SET app.x = 'c'": "c",
	} {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
		for text := range strings.SplitSeq(script, "; ") {
			if _, err := s.Run(t.Context(), text); err != nil && !strings.Contains(text, "bad") {
				t.Errorf("%s: %s: %v", script, text, err)
			}
			if strings.Contains(text, "bad") {
				s.tx = txFailed
			}
		}
		got, had := s.settings["app.x"]
		if !had {
			got = "none"
		}
		if got != want || s.settings["timezone"] != "UTC" {
			t.Errorf("%s: app.x is %s, want %s; the time zone is %s", script, got, want, s.settings["timezone"])
		}
	}
}

// TestReadOnlySessions holds that default_transaction_read_only is honoured: a statement that changes something is
// refused as PostgreSQL refuses one, and reports go on.
func TestReadOnlySessions(t *testing.T) {
	t.Parallel()
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	change := "ALTER AVAILABILITY GROUP shop SET (COMMIT_RULE = ALL)"
	for _, on := range []string{"on", "TRUE", "1", "y"} {
		if _, err := s.Run(t.Context(), "SET default_transaction_read_only = "+on); err != nil {
			t.Fatal(err)
		}
		var refused *Error
		if _, err := s.Run(t.Context(), change); !errors.As(err, &refused) || refused.State != "25006" {
			t.Errorf("%s: %v", on, err)
		}
		if _, err := s.Run(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("%s: %v", on, err)
		}
		if _, err := s.Run(t.Context(), "SET SESSION default_transaction_read_only TO off"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Run(t.Context(), change); err != nil {
			t.Errorf("%s, then off: %v", on, err)
		}
	}
	if _, err := s.Run(t.Context(), "SET default_transaction_read_only = maybe"); err == nil {
		t.Error("a value that is neither on nor off is taken")
	}
}

// TestBeginTags holds that the beginning of a transaction is answered as PostgreSQL does.
func TestBeginTags(t *testing.T) {
	t.Parallel()
	for text, tag := range map[string]string{"BEGIN": "BEGIN", "start transaction": "START TRANSACTION", "START TRANSACTION READ ONLY": "START TRANSACTION"} {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayLook})
		if r, err := s.Run(t.Context(), text); err != nil || r.Tag != tag {
			t.Errorf("%q: %q, %v", text, r.Tag, err)
		}
	}
}

// TestReadOnlyTransactions holds that a transaction which only reads, by any of the statements for it, refuses what
// changes something, and that the next one is as the session's are.
func TestReadOnlyTransactions(t *testing.T) {
	t.Parallel()
	const change, on, off = "ALTER AVAILABILITY GROUP shop SET (COMMIT_RULE = ALL)", "SET default_transaction_read_only = on", "SET default_transaction_read_only = off"
	for script, refused := range map[string]bool{
		"BEGIN":           false,
		"BEGIN READ ONLY": true,
		"begin transaction isolation level serializable, read only":                                 true,
		"START TRANSACTION READ ONLY":                                                               true,
		"BEGIN TRANSACTION READ /* x /* y */ z */ ONLY -- READ WRITE":                               true,
		"BEGIN; SET TRANSACTION READ /*x*/ ONLY":                                                    true,
		"BEGIN; SET TRANSACTION READ -- WRITE\n ONLY /* READ WRITE */":                              true,
		"BEGIN ISOLATION LEVEL SERIALIZABLE /* READ ONLY */":                                        false,
		"START TRANSACTION READ ONLY, READ WRITE":                                                   false,
		"BEGIN; SET TRANSACTION READ ONLY":                                                          true,
		"BEGIN; SET LOCAL transaction_read_only TO yes":                                             true,
		"BEGIN READ ONLY; SET TRANSACTION READ WRITE":                                               false,
		"BEGIN; SET TRANSACTION ISOLATION LEVEL READ COMMITTED":                                     false,
		"BEGIN READ ONLY; COMMIT":                                                                   false,
		"BEGIN READ ONLY; ROLLBACK; BEGIN":                                                          false,
		"SET TRANSACTION READ ONLY":                                                                 false, // as PostgreSQL: outside of a block it says that it does nothing
		"SET TRANSACTION READ ONLY; BEGIN":                                                          false,
		"SET transaction_read_only = on":                                                            false,
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY":                                      true,
		"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY; BEGIN": true,
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY; RESET ALL":                           false,
		on + "; SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE":                              false,
		on + "; BEGIN":                             true,
		on + "; BEGIN READ WRITE":                  false,
		on + "; BEGIN READ WRITE; COMMIT":          true,
		on + "; BEGIN; " + off:                     true,
		on + "; BEGIN; " + off + "; COMMIT; BEGIN": false,
		"BEGIN; " + on:                             false, // for the transactions that begin
	} {
		s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
		var said []Notice
		for _, text := range strings.Split(script, "; ") {
			r, err := s.Run(t.Context(), text)
			if err != nil {
				t.Fatalf("%s: %v", script, err)
			}
			said = append(said, r.Notices...)
		}
		if idle := strings.HasPrefix(strings.ToLower(script), "set transaction"); idle != (len(said) > 0) {
			t.Errorf("%s: it says %v", script, said)
		}
		shown, err := s.Run(t.Context(), "SHOW transaction_read_only")
		if want := map[bool]string{true: "on", false: "off"}[refused]; err != nil || shown.Rows[0][0] != want {
			t.Errorf("%s: shown as %v, %v", script, shown.Rows, err)
		}
		if _, err := s.Run(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("%s: a query: %v", script, err)
		}
		_, err = s.Run(t.Context(), change)
		if state := ""; err != nil {
			if state = AsError(err).State; !refused || state != "25006" {
				t.Errorf("%s: %s %v", script, state, err)
			}
		} else if refused {
			t.Errorf("%s: it was changed", script)
		}
	}
	s := NewSession(newWorld(t), Principal{User: "me", May: ddl.MayAdminister})
	for _, text := range []string{"BEGIN", "SET transaction_read_only = maybe"} {
		if _, err := s.Run(t.Context(), text); (err != nil) != strings.Contains(text, "maybe") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
