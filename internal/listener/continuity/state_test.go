package continuity

import "testing"

// TestDiffersAcross holds which sessions may go on at a server of another major version: those whose client cannot
// observe more than the version.
func TestDiffersAcross(t *testing.T) {
	state := func(version string, s Statement) *State {
		return &State{
			User: "u", Settings: map[string]string{"work_mem": "7MB"}, Reported: map[string]string{"server_version": version, "client_encoding": "UTF8"},
			Statements: map[string]Statement{"s": s},
		}
	}
	plain := Statement{Text: "select x from t where i = $1", Types: []uint32{23}}
	told := func(results string) Statement { s := plain; s.Results = results; return s }
	for name, c := range map[string]struct {
		was, again *State
		across     bool
		want       string
	}{
		"the same version":                 {state("15.4", plain), state("15.18 (Debian)", plain), false, ""},
		"another one, of a lost server":    {state("15.4", plain), state("16.1", told("{text}")), false, "the version of PostgreSQL"},
		"another one":                      {state("15.4", plain), state("16.1", told("{text}")), true, ""},
		"both tell the results":            {state("16.1", told("{text}")), state("18beta1", told("{text}")), true, ""},
		"results that are told no more":    {state("16.1", told("{text}")), state("15.4", plain), true, "prepared statements"},
		"an earlier one":                   {state("16.1", plain), state("15.4", plain), true, ""},
		"other results":                    {state("16.1", told("{text}")), state("18.0", told("{integer}")), true, "prepared statements"},
		"a type of its own":                {state("16.1", Statement{Text: "a", Types: []uint32{16400}}), state("18.0", Statement{Text: "a", Types: []uint32{16400}}), true, "prepared statements"},
		"a column of the catalogs":         {state("15.4", Statement{Text: "SELECT * FROM PG_class"}), state("16.1", Statement{Text: "SELECT * FROM PG_class", Results: "{oid}"}), true, "prepared statements"},
		"a catalog whose results are told": {state("16.1", Statement{Text: "select oid from pg_class", Results: "{oid}"}), state("17.1", Statement{Text: "select oid from pg_class", Results: "{oid}"}), true, ""},
	} {
		if got := c.was.Differs(c.again, c.across); got != c.want {
			t.Errorf("%s: %q, not %q", name, got, c.want)
		}
	}
	for _, c := range []struct {
		was, again string
		crosses    bool
	}{{"15.4", "16.1", true}, {"15.4", "15.18", false}, {"18.1", "15.4", true}, {"9.6.1", "15.1", true}, {"18.1", "19beta1", true}} {
		if got := state(c.was, plain).Crosses(state(c.again, plain)); got != c.crosses {
			t.Errorf("%s after %s is another version: %t", c.again, c.was, got)
		}
	}
	was := state("15.4", plain)
	now := was.Now(map[string]string{"server_version": "16.1"}, state("16.1", told("{text}")))
	if now.Reported["server_version"] != "16.1" || now.Reported["client_encoding"] != "UTF8" || now.Statements["s"].Results != "{text}" || was.Reported["server_version"] != "15.4" || was.Statements["s"].Results != "" {
		t.Errorf("%+v after %+v", now, was)
	}
}
