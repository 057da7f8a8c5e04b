package postgres

import (
	"context"
	_ "embed"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]Install{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": {Major: 15, Version: "15.18", Num: 150018},
		"postgres (PostgreSQL) 18.1":                             {Major: 18, Version: "18.1", Num: 180001},
		"postgres (PostgreSQL) 18beta2\n":                        {Major: 18, Version: "18beta2", Num: 180000},
		"postgres (PostgreSQL) 9.6.24":                           {},
		"psql (PostgreSQL) 15.1":                                 {},
		"":                                                       {},
	} {
		got, err := parseVersion(out)
		if got != want || (err == nil) != (want.Major != 0) {
			t.Errorf("%q: %+v, %v; want %+v", out, got, err, want)
		}
	}
}

func TestFindRefusesForeignPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, script string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("COTERIE_PG_BINDIRS", dir)
	count := func() int {
		found, err := Find(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(found, func(in Install) bool { return in.BinDir != dir }))
	}
	write("postgres", "echo 'postgres (PostgreSQL) 17.4'")
	if n := count(); n != 0 {
		t.Errorf("a directory with nothing but postgres was taken for an installation")
	}
	write("initdb", "")
	write("pg_controldata", "")
	if n := count(); n != 1 {
		t.Errorf("found %d times", n)
	}
	write("postgres", "echo 'postgres (PostgreSQL) 13.4'")
	if n := count(); n != 0 {
		t.Errorf("an unsupported version was found")
	}
}

// Who lists directories in COTERIE_PG_BINDIRS gets the first of them, whatever is newer elsewhere.
func TestFindTakesTheFirstListed(t *testing.T) {
	var dirs []string
	for _, version := range []string{"14.7", "18.1", "16.2"} {
		dir := t.TempDir()
		for name, script := range map[string]string{"postgres": "echo 'postgres (PostgreSQL) " + version + "'", "initdb": "", "pg_controldata": ""} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		dirs = append(dirs, dir)
	}
	t.Setenv("COTERIE_PG_BINDIRS", strings.Join(dirs, string(filepath.ListSeparator)))
	found, err := Find(t.Context())
	if err != nil || len(found) < 3 || found[0].Version != "14.7" || found[1].Version != "18.1" || found[2].Version != "16.2" {
		t.Errorf("%+v %v", found, err)
	}
}

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

func TestParseHistory(t *testing.T) {
	got, err := parseHistory("1\t0/3000000\tno recovery target specified\n\n# note\n4\t1/A0\tx # y\n", 9)
	want := []ag.TimelineEntry{{TLI: 4, Parent: 1, Switch: 0x3000000}, {TLI: 9, Parent: 4, Switch: 1<<32 + 0xA0}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	l := newLineage(9, got)
	for lsn, tli := range map[ag.LSN]ag.Timeline{0: 1, 0x2FFFFFF: 1, 0x3000000: 4, 1<<32 + 0xA0: 9, maxLSN - 1: 9} {
		if l.at(lsn) != tli {
			t.Errorf("%s is on timeline %d, want %d", lsn, l.at(lsn), tli)
		}
	}
	for p, want := range map[ag.Position]bool{
		{Timeline: 1, LSN: 0x3000000}: true,
		{Timeline: 1, LSN: 0x3000001}: false,
		{Timeline: 4, LSN: 0x3000000}: true,
		{Timeline: 4, LSN: 1}:         false,
		{Timeline: 2, LSN: 1}:         false,
		{Timeline: 9, LSN: maxLSN}:    true,
	} {
		if l.contains(p) != want {
			t.Errorf("the lineage contains %s: %v", p, !want)
		}
	}
	for _, bad := range []string{"", "# only a note\n", "x 0/1\n", "1\n", "1 z\n", "3 0/5\n1 0/6\n", "1 0/6\n3 0/5\n", "9 0/1\n"} {
		if got, err := parseHistory(bad, 9); err == nil {
			t.Errorf("%q was read as %v", bad, got)
		}
	}
}

func TestCommonAncestor(t *testing.T) {
	one := newLineage(1, nil)
	four := newLineage(4, []ag.TimelineEntry{{TLI: 4, Parent: 1, Switch: 100}})
	five := newLineage(5, []ag.TimelineEntry{{TLI: 5, Parent: 1, Switch: 90}})
	other := newLineage(7, []ag.TimelineEntry{{TLI: 7, Parent: 4, Switch: 200}})
	other[0].tli = 3
	for _, c := range []struct {
		a, b lineage
		want ag.Position
	}{
		{one, four, ag.Position{Timeline: 1, LSN: 100}},
		{four, five, ag.Position{Timeline: 1, LSN: 90}},
		{four, four, ag.Position{Timeline: 4, LSN: maxLSN}},
		{one, other, ag.Position{}},
	} {
		got, err := commonAncestor(c.a, c.b)
		if got != c.want || (err == nil) != (c.want.Timeline != 0) {
			t.Errorf("%v and %v part at %s, %v; want %s", c.a, c.b, got, err, c.want)
		}
	}
}

func FuzzParseHistory(f *testing.F) {
	f.Add("1\t0/3000000\tno recovery target specified\n", uint32(2))
	f.Add("1 0/1\n2 0/2 x\n#\n", uint32(7))
	f.Add("", uint32(0))
	f.Fuzz(func(t *testing.T, content string, tli uint32) {
		entries, err := parseHistory(content, ag.Timeline(tli))
		if err != nil {
			return
		}
		l := newLineage(ag.Timeline(tli), entries)
		for k := 1; k < len(l); k++ {
			if l[k].begin != l[k-1].end || l[k].tli <= l[k-1].tli {
				t.Errorf("%q: lineage %v", content, l)
			}
		}
	})
}

func TestEditAutoConf(t *testing.T) {
	old := "# Do not edit\nwork_mem = '7MB'\nPRIMARY_CONNINFO = 'host=x'\nrecovery_target_time='2020'\nrecovery_prefetch = 'try'\n" +
		"synchronous_standby_names 'x'\nmy.thing = 'it''s # \\\\'\nport=1 # c"
	value := `ANY 1 ("a\b")`
	got, err := editAutoConf(old, map[string]*string{"synchronous_standby_names": &value, "port": nil})
	want := "# Do not edit\nwork_mem = '7MB'\nrecovery_prefetch = 'try'\nmy.thing = 'it''s # \\\\'\nsynchronous_standby_names = 'ANY 1 (\"a\\\\b\")'\n"
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, want := range map[string]string{"synchronous_standby_names": value, "my.thing": `it's # \`, "work_mem": "7MB"} {
		if v, ok := autoConfValue(got, name); !ok || v != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
	bad := "a\nb"
	if _, err := editAutoConf("", map[string]*string{"x": &bad}); err == nil {
		t.Error("a value of two lines was written")
	}
	if _, err := editAutoConf("", map[string]*string{"x = 'y'\nz": &value}); err == nil {
		t.Error("a name of two lines was written")
	}
}

func FuzzAutoConf(f *testing.F) {
	f.Add("work_mem = '1MB'\n", "x", "it's \\ odd")
	f.Add("a\n= 'b", "port", "")
	f.Fuzz(func(t *testing.T, old, name, value string) {
		name = strings.ToLower(name)
		got, err := editAutoConf(old, map[string]*string{name: &value})
		if err != nil {
			return
		}
		if v, ok := autoConfValue(got, name); !ok || v != value {
			t.Errorf("%s = %q reads as %q, %v from:\n%s", name, value, v, ok, got)
		}
		again, err := editAutoConf(got, map[string]*string{name: &value})
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
		if got := quoteLiteral(in); got != want {
			t.Errorf("quoteLiteral(%q) = %s, want %s", in, got, want)
		}
	}
}

//go:embed testdata/controldata.txt
var controldata string

func TestParseControl(t *testing.T) {
	c, err := parseControl(controldata)
	want := Control{
		SystemID: "7000000000000000001", State: "in archive recovery", Timeline: 4, PrevTimeline: 1, CheckPoint: 0x15C05B0, Redo: 0x15C0578,
		MinRecoveryEnd: 0x15C0628, MinRecoveryTLI: 5, DataChecksums: true, BlockSize: 8192, WalBlockSize: 8192, WalSegmentSize: 16 << 20, CatalogVersion: "202209061",
		Settings: map[string]int{"max_connections": 100, "max_worker_processes": 8, "max_wal_senders": 10, "max_prepared_transactions": 0, "max_locks_per_transaction": 64},
	}
	if diff := cmp.Diff(want, c); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{
		"", "WARNING: Calculated CRC checksum does not match\n" + controldata, strings.Replace(controldata, "16777216", "16777217", 1),
		strings.Replace(controldata, "0/15C05B0", "here", 1), controldata[:len(controldata)/2],
	} {
		if c, err := parseControl(bad); err == nil {
			t.Errorf("%.60q... was read as %+v", bad, c)
		}
	}
}

func TestSegmentNames(t *testing.T) {
	for _, size := range []ag.LSN{1 << 20, 16 << 20, 1 << 30} {
		for _, lsn := range []ag.LSN{0, size, 1<<32 - 1, 1 << 32, 5<<32 + 3*size} {
			name := segmentName(3, lsn/size, size)
			if seg, ok := segmentNumber(name, size); !ok || seg != lsn/size {
				t.Errorf("segment of %s with size %d: %s is %d, %v", lsn, size, name, seg, ok)
			}
		}
	}
	if got := segmentName(1, 0x123, 16<<20); got != "000000010000000100000023" {
		t.Errorf("segment 0x123 is %s", got)
	}
	if _, ok := segmentNumber("00000002.history", 16<<20); ok {
		t.Error("a history file is no segment")
	}
}

func TestRunLines(t *testing.T) {
	var got []string
	out, err := runLines(t.Context(), "sh", []string{"-c", `printf 'a\r b\n\nc'; printf 'd\n' >&2; exit 3`}, func(s string) { got = append(got, s) })
	if diff := cmp.Diff([]string{"a", "b", "cd"}, got); err == nil || diff != "" || string(out) != "a\nb\ncd\n" {
		t.Errorf("%q, %v (-want +got):\n%s", out, err, diff)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := runLines(ctx, "sleep", []string{"60"}, func(string) {}); err == nil || ctx.Err() == nil {
		t.Errorf("an endless tool: %v", err)
	}
}
