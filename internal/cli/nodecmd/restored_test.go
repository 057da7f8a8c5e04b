package nodecmd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestMain makes this binary the keeper of a host that takes two seconds to fence, too long for the default profile.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		fmt.Println("2s")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestNothingIsRestoredInVain holds that a group which could not be founded is refused before its cluster is restored,
// which may take hours, and that nothing stays then.
func TestNothingIsRestoredInVain(t *testing.T) {
	for name, tt := range map[string]struct {
		flags string
		text  string
	}{
		"a host that fences too slowly for the profile": {"", "too long"},
		"an external quorum that nobody answers":        {"--quorum-endpoints http://127.0.0.1:1", "the external quorum does not answer"},
		"a profile that does not exist":                 {"--profile wlan", "default, fast or wan"},
	} {
		r := &Restored{Dir: filepath.Join(t.TempDir(), "n1"), Group: "orders"}
		c := &cobra.Command{}
		r.AddFlags(c)
		if err := c.ParseFlags(append(strings.Fields(tt.flags), "--name", "n1")); err != nil {
			t.Fatal(err)
		}
		c.SetContext(t.Context())
		bin := t.TempDir()
		for _, program := range []string{"postgres", "initdb", "pg_ctl", "pg_controldata", "pg_rewind", "pg_resetwal", "pg_basebackup", "pg_waldump"} {
			if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\necho 'postgres (PostgreSQL) 15.1'\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		r.binDir = bin
		err := r.CheckDir()
		if err == nil {
			err = r.Found(c, func(context.Context, Place) error {
				t.Errorf("%s: it is restored", name)
				return fail.Unhealthyf("restored in vain")
			})
		}
		if err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(r.Dir, "state")); err == nil {
			t.Errorf("%s: %s stays", name, r.Dir)
		}
	}
}

// TestRestoreKeepsTheMajorVersion holds that another version than the backup's is refused, and not left out.
func TestRestoreKeepsTheMajorVersion(t *testing.T) {
	r := &Restored{Dir: filepath.Join(t.TempDir(), "n1"), Group: "orders", Major: 15}
	c := &cobra.Command{}
	r.AddFlags(c)
	if err := c.ParseFlags([]string{"--name", "n1", "--pg-major", "16"}); err != nil {
		t.Fatal(err)
	}
	if err := r.Check(t.Context()); fail.KindOf(err) != fail.Usage || !strings.Contains(err.Error(), "--pg-major 16: the backup is of PostgreSQL 15") {
		t.Error(err)
	}
}
