package buildinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// put makes a program that says something, as a package manager does: by renaming a new file over the old one. It
// counts how often it runs in the file runs.
func put(t *testing.T, path, says string) {
	t.Helper()
	text := fmt.Sprintf("#!/bin/sh\necho x >>%s.runs\n%s\n", path, says)
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestInstalled holds that the version of the program on disk is found, also after it was replaced, and that each is
// asked once.
func TestInstalled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "coterie")
	put(t, path, "echo unreachable >&2; exit 1")
	if got, err := installed(t.Context(), path, path); err != nil || got != String() {
		t.Errorf("the own file: %q, %v", got, err)
	}
	for _, v := range []string{"0.2.0 (commit abc, 2026-11-28)", "0.3.0 (commit def, 2026-11-29)"} {
		put(t, path, "echo 'coterie version "+v+"'")
		for range 3 {
			if got, err := installed(t.Context(), path, "/proc/self/exe"); err != nil || got != v {
				t.Errorf("%q, %v; want %q", got, err, v)
			}
		}
	}
	if b, err := os.ReadFile(path + ".runs"); err != nil || strings.Count(string(b), "x") != 2 {
		t.Errorf("two programs were asked %d times: %v", strings.Count(string(b), "x"), err)
	}
	for says, want := range map[string]string{
		"echo 'something else'":             "is not a program of Coterie",
		"echo 'coterie version '":           "is not a program of Coterie",
		"exit 3":                            "exit status 3",
		"printf 'coterie version a\\nb\\n'": "is not a program of Coterie",
	} {
		put(t, path, says)
		if got, err := installed(t.Context(), path, "/proc/self/exe"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v", says, got, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := installed(t.Context(), path, "/proc/self/exe"); err == nil || !strings.Contains(err.Error(), "there is no program at "+path) {
		t.Error(err)
	}
}
