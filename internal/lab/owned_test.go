package lab

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOpenTrustsNobodyElse holds that a lab which another user could have written is refused, and that root runs no
// program of another user.
func TestOpenTrustsNobodyElse(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(t.TempDir(), "coterie")
	if err := os.WriteFile(exe, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		spoil func(dir string) error
		root  bool // needs root
		opens bool
		exe   bool // the one that lab.json names
	}{
		"its own":                {func(string) error { return nil }, false, true, true},
		"everybody's directory":  {func(dir string) error { return os.Chmod(dir, 0o777) }, false, false, false},
		"everybody's file":       {func(dir string) error { return os.Chmod(filepath.Join(dir, file), 0o666) }, false, false, false},
		"another's directory":    {func(dir string) error { return os.Chown(dir, 1, 1) }, true, false, false},
		"another's file":         {func(dir string) error { return os.Chown(filepath.Join(dir, file), 1, 1) }, true, false, false},
		"a program of another's": {func(string) error { return os.Chown(exe, 1, 1) }, true, true, false},
	} {
		if tt.root && os.Getuid() != 0 {
			continue
		}
		if os.Getuid() == 0 {
			if err := os.Chown(exe, 0, 0); err != nil {
				t.Fatal(err)
			}
		}
		dir := filepath.Join(t.TempDir(), "lab")
		if err := makeDir(dir); err != nil {
			t.Fatal(err)
		}
		d := description{Replicas: 1, Net: NetLoopback, Port: defaultPort, Profile: "default", Exe: exe}
		if err := d.write(dir); err != nil {
			t.Fatal(err)
		}
		if err := tt.spoil(dir); err != nil {
			t.Fatal(err)
		}
		l, err := Open(dir)
		if (err == nil) != tt.opens || l != nil && (l.d.Exe == exe) != tt.exe {
			t.Errorf("%s: %v", name, err)
		}
	}
}
