package nodecmd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestInstallThatDoesNotExist holds that a version, or a directory, that no server can be run of is a mistake of the
// flags, and that its answer names what is found and what to do.
func TestInstallThatDoesNotExist(t *testing.T) {
	bin := t.TempDir()
	for name, script := range map[string]string{"postgres": "echo 'postgres (PostgreSQL) 16.3'", "initdb": "", "pg_controldata": ""} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("COTERIE_PG_BINDIRS", bin)
	for want, f := range map[string]NodeFlags{
		"PostgreSQL 9 is not supported, 14 to 18 are; found here: 16.3":                                         {major: 9},
		"PostgreSQL 99 is not supported, 14 to 18 are; found here: 16.3":                                        {major: 99},
		"--pg-bindir /nonexistent: /nonexistent has no initdb; name the directory that has postgres and initdb": {binDir: "/nonexistent"},
	} {
		if _, err := f.Install(t.Context()); fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "leave the flag away") {
			t.Errorf("%v (%s), want %s", err, fail.KindOf(err), want)
		}
	}
	if in, err := (&NodeFlags{major: 16}).Install(t.Context()); err != nil || in.Major != 16 {
		t.Errorf("%+v, %v", in, err)
	}
}
