package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEditAutoConf(t *testing.T) {
	old := "# Do not edit\nwork_mem = '7MB'\nPRIMARY_CONNINFO = 'host=x'\nrecovery_target_time='2020'\nrecovery_prefetch = 'try'\n" +
		"synchronous_standby_names 'x'\nmy.thing = 'it''s # \\\\'\nport=1 # c"
	value := `ANY 1 ("a\b")`
	got, err := EditAutoConf(old, map[string]*string{"synchronous_standby_names": &value, "port": nil})
	want := "# Do not edit\nwork_mem = '7MB'\nrecovery_prefetch = 'try'\nmy.thing = 'it''s # \\\\'\nsynchronous_standby_names = 'ANY 1 (\"a\\\\b\")'\n"
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, want := range map[string]string{"synchronous_standby_names": value, "my.thing": `it's # \`, "work_mem": "7MB"} {
		if v, ok := AutoConfValue(got, name); !ok || v != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
	bad := "a\nb"
	if _, err := EditAutoConf("", map[string]*string{"x": &bad}); err == nil {
		t.Error("a value of two lines was written")
	}
	if _, err := EditAutoConf("", map[string]*string{"x = 'y'\nz": &value}); err == nil {
		t.Error("a name of two lines was written")
	}
}

func FuzzAutoConf(f *testing.F) {
	f.Add("work_mem = '1MB'\n", "x", "it's \\ odd")
	f.Add("a\n= 'b", "port", "")
	f.Fuzz(func(t *testing.T, old, name, value string) {
		name = strings.ToLower(name)
		got, err := EditAutoConf(old, map[string]*string{name: &value})
		if err != nil {
			return
		}
		if v, ok := AutoConfValue(got, name); !ok || v != value {
			t.Errorf("%s = %q reads as %q, %v from:\n%s", name, value, v, ok, got)
		}
		again, err := EditAutoConf(got, map[string]*string{name: &value})
		if err != nil || again != got {
			t.Errorf("editing twice: %q, %v; once: %q", again, err, got)
		}
	})
}

func TestQuoting(t *testing.T) {
	for in, want := range map[string]string{"/run/x": "/run/x", "": "''", "a b": "'a b'", `it's \`: `'it\'s \\'`} {
		if got := QuoteConninfo(in); got != want {
			t.Errorf("QuoteConninfo(%q) = %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{"x": "'x'", `a'b\`: ` E'a''b\\'`} {
		if got := QuoteLiteral(in); got != want {
			t.Errorf("quoteLiteral(%q) = %s, want %s", in, got, want)
		}
	}
}
