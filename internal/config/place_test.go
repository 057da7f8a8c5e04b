package config

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// stranger is a user that no test runs as.
const stranger = 54321

// TestCheckPlace holds where a node directory may be made: nowhere where another user could change it, or lead its path
// elsewhere. The cases of another user's directories need root.
func TestCheckPlace(t *testing.T) {
	t.Parallel()
	chmod := func(path string, mode os.FileMode) error {
		return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode))
	}
	chown := func(path string, uid, gid int) error {
		return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, uid, gid))
	}
	for name, tt := range map[string]struct {
		prepare func(base string) error // makes base/a, or base/a/node
		refused string                  // "": it is not
		root    bool
	}{
		"nothing is there":            {func(string) error { return nil }, "", false},
		"empty":                       {func(b string) error { return os.MkdirAll(filepath.Join(b, "a", "node"), 0o755) }, "", false},
		"all may write above":         {func(b string) error { return chmod(b+"/a", 0o777) }, "every user may write to", false},
		"all may write above, sticky": {func(b string) error { return chmod(b+"/a", 0o777|os.ModeSticky) }, "", false},
		"all may write to it": {func(b string) error {
			return errors.Join(os.Mkdir(b+"/a", 0o755), chmod(b+"/a/node", 0o777|os.ModeSticky))
		}, "every user may write to", false},
		"a link of its own": {func(b string) error { return errors.Join(os.Mkdir(b+"/real", 0o755), os.Symlink("real", b+"/a")) }, "", false},
		"a link to where all may write": {func(b string) error {
			return errors.Join(chmod(b+"/real", 0o777), os.Symlink(b+"/real", b+"/a"))
		}, "every user may write to", false},
		"a link to itself":     {func(b string) error { return os.Symlink("a", b+"/a") }, "too many links", false},
		"another user's above": {func(b string) error { return chown(b+"/a", stranger, 0) }, "belongs to user 54321", true},
		"another user's":       {func(b string) error { return errors.Join(os.Mkdir(b+"/a", 0o755), chown(b+"/a/node", stranger, 0)) }, "belongs to user 54321", true},
		"another user's link":  {func(b string) error { return errors.Join(os.Symlink("/", b+"/a"), os.Lchown(b+"/a", stranger, 0)) }, "a link of user 54321", true},
		"another user's link to it": {func(b string) error {
			return errors.Join(os.Mkdir(b+"/a", 0o755), os.Symlink("/", b+"/a/node"), os.Lchown(b+"/a/node", stranger, 0))
		}, "a link of user 54321", true},
		"another group may write": {func(b string) error { return errors.Join(chown(b+"/a", 0, stranger), os.Chmod(b+"/a", 0o770)) }, "the group 54321 may write to", true},
		"another group reads":     {func(b string) error { return errors.Join(chown(b+"/a", 0, stranger), os.Chmod(b+"/a", 0o750)) }, "", true},
		"another user's, all sticky": {func(b string) error {
			return errors.Join(chown(b+"/a", stranger, 0), os.Chmod(b+"/a", 0o777|os.ModeSticky))
		}, "belongs to user 54321", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tt.root && os.Geteuid() != 0 {
				t.Skip("needs root: directories of another user")
			}
			base := t.TempDir()
			if err := os.Chmod(base, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := tt.prepare(base); err != nil {
				t.Fatal(err)
			}
			err := CheckPlace(filepath.Join(base, "a", "node"))
			if (err == nil) != (tt.refused == "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%v, want %q", err, tt.refused)
			}
		})
	}
}

// TestCheckPlaceAsOrdinaryUser runs TestCheckPlace again as an ordinary user, if this process is root.
func TestCheckPlaceAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this user is ordinary: TestCheckPlace was enough")
	}
	if testing.Short() {
		t.Skip("runs the tests again")
	}
	dir, err := os.MkdirTemp("", "place")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "test"), exe, 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o700),
		os.Chown(filepath.Join(dir, "tmp"), stranger, stranger), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "test"), "-test.run", "^TestCheckPlace$")
	cmd.Dir, cmd.Env = "/", []string{"TMPDIR=" + filepath.Join(dir, "tmp"), "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = asUser(stranger)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func asUser(id uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
}
