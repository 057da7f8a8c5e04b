package programs

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// A list of directories in COTERIE_PG_BINDIRS gives the first of them, even if another place has a newer version.
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

// TestInspectOfARelativePath holds that an installation has an absolute path however it was named: it is written into
// coterie.yaml, and read by processes that work elsewhere.
func TestInspectOfARelativePath(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{"postgres": "echo 'postgres (PostgreSQL) 17.4'", "initdb": "", "pg_controldata": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Dir(dir))
	if in, err := Inspect(t.Context(), filepath.Base(dir)); err != nil || in.BinDir != dir {
		t.Errorf("%+v, %v", in, err)
	}
}

func TestRunLines(t *testing.T) {
	var got []string
	out, err := RunLines(t.Context(), "sh", []string{"-c", `printf 'a\r b\n\nc'; printf 'd\n' >&2; exit 3`}, func(s string) { got = append(got, s) })
	if diff := cmp.Diff([]string{"a", "b", "cd"}, got); err == nil || diff != "" || string(out) != "a\nb\ncd\n" {
		t.Errorf("%q, %v (-want +got):\n%s", out, err, diff)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := RunLines(ctx, "sleep", []string{"60"}, func(string) {}); err == nil || ctx.Err() == nil {
		t.Errorf("an endless tool: %v", err)
	}
}
