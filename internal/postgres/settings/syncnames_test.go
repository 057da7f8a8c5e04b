package settings

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestParseSync(t *testing.T) {
	for value, want := range map[string]Sync{
		"":                                 {},
		"  ":                               {},
		"a":                                {Names: []string{"a"}, Num: 1, First: true},
		"a, b":                             {Names: []string{"a", "b"}, Num: 1, First: true},
		"*":                                {Names: []string{"*"}, Num: 1, First: true},
		"2 (a,b)":                          {Names: []string{"a", "b"}, Num: 2, First: true},
		"first 1 (\"A\"\"x\", 3)":          {Names: []string{`A"x`, "3"}, Num: 1, First: true},
		`ANY 2 ("cot_n1_7","cot_n2_7", c)`: {Names: []string{"cot_n1_7", "cot_n2_7", "c"}, Num: 2},
		"any,first":                        {Names: []string{"any", "first"}, Num: 1, First: true},
	} {
		got, err := ParseSync(value)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v (-want +got):\n%s", value, err, diff)
		}
	}
	for _, bad := range []string{"(a)", "ANY (a)", "ANY 0 (a)", "ANY -1 (a)", "SOME 1 (a)", "ANY 1 (a", "ANY 1 a", "a b", "a,", ",", `"a`, "ANY 1 ()", "1 2 3 (a)", "ANY 1 (a) b", `"ANY" 1 (a)`, "99999999999999999999 (a)"} {
		if got, err := ParseSync(bad); err == nil {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}

func TestSyncEqual(t *testing.T) {
	anyAB, anyBA := Sync{Names: []string{"a", "b"}, Num: 1}, Sync{Names: []string{"b", "a"}, Num: 1}
	firstAB, firstBA := anyAB, anyBA
	firstAB.First, firstBA.First = true, true
	if !anyAB.Equal(anyBA) || firstAB.Equal(firstBA) || anyAB.Equal(firstAB) || anyAB.Equal(Sync{}) || !(Sync{}).Equal(Sync{Names: []string{"a"}}) {
		t.Error("Equal does not compare what the settings mean")
	}
}

func FuzzParseSync(f *testing.F) {
	for _, s := range []string{"", "a,b", `ANY 1 ("a""b",c)`, "2 (x)", "FIRST 1 (*)", `"`, "ANY 1 (a,)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		s, err := ParseSync(value)
		if err != nil || s.Num == 0 {
			return
		}
		again, err := ParseSync(s.String())
		if err != nil || !again.Equal(s) || !slices.Equal(again.Names, s.Names) {
			t.Errorf("%q is %+v, printed %q, read again %+v, %v", value, s, s, again, err)
		}
	})
}

func TestApplication(t *testing.T) {
	for _, m := range []ag.ReplicaID{"n1", "a_b_3"} {
		got, epoch, ok := ParseApplication(Application(m, 42))
		if got != m || epoch != 42 || !ok {
			t.Errorf("%s: %s, %d, %v", m, got, epoch, ok)
		}
		if got, epoch, ok = ParseApplication(strings.ToUpper(Application(m, 42))); got != m || epoch != 42 || !ok {
			t.Errorf("%s in capitals: %s, %d, %v", m, got, epoch, ok)
		}
	}
	for _, bad := range []string{"", "cot_", "cot_n1", "cot__1", "cot_n1_", "cot_n1_x", "cot_n1_07", "other_n1_1", "cot_n1_-1"} {
		if m, e, ok := ParseApplication(bad); ok {
			t.Errorf("%q was read as %s, %d", bad, m, e)
		}
	}
}
