package lab

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
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

// TestKeepOffAddresses holds that coterie.yaml gets the line once, keeps what it has, its owner and its mode, and that
// nothing is written where the file is a link out of the node's directory.
func TestKeepOffAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"node: n1\n":      "node: n1\nno_virtual_addresses: true\n",
		"node: n1 # mine": "node: n1 # mine\nno_virtual_addresses: true\n",
		"no_virtual_addresses: false\nnode: n1\n":  "no_virtual_addresses: false\nnode: n1\n",
		"# no_virtual_addresses: true\nnode: n1\n": "# no_virtual_addresses: true\nnode: n1\nno_virtual_addresses: true\n",
	} {
		n := Node{Dir: t.TempDir()}
		path := filepath.Join(n.Dir, config.File)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := keepOffAddresses(n); err != nil {
				t.Fatal(err)
			}
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%q became %q, %v", text, b, err)
		}
		outside := filepath.Join(t.TempDir(), "passwd")
		if err := errors.Join(os.WriteFile(outside, nil, 0o600), os.Remove(path), os.Symlink(outside, path)); err != nil {
			t.Fatal(err)
		}
		if err := keepOffAddresses(n); err == nil {
			t.Error("a link out of the node's directory was followed")
		}
	}
}
