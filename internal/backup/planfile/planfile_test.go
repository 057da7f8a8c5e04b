package planfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/pgbackrest"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

var (
	plan    = backup.Plan{Tool: pgbackrest.Name, Stanza: "orders", Retention: 2, Repository: backup.Repository{Directory: "/backup"}}
	secrets = backup.Secrets{Passphrase: "planted"}
)

// TestFiles holds that a plan is there once it is saved, that only the node's user can read the secrets, and that they
// go with the plan.
func TestFiles(t *testing.T) {
	l := config.Layout{Dir: t.TempDir()}
	if _, _, err := Open(l); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	undo, err := Remember(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Prepare(l.Backup(), plan, secrets, pgbackrest.Server{Data: "/d"}), undo()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(l.Backup(), pgbackrest.ConfigFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a first configuration that failed stays: %v", err)
	}
	if err := errors.Join(Prepare(l.Backup(), plan, secrets, pgbackrest.Server{Data: "/d"}), Save(l, plan)); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{l.Backup(): 0o700, filepath.Join(l.Backup(), pgbackrest.ConfigFile): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	if b, err := os.ReadFile(Path(l)); err != nil || strings.Contains(string(b), "planted") {
		t.Errorf("%s, %v", b, err)
	}
	if undo, err = Remember(l); err != nil {
		t.Fatal(err)
	}
	other := secrets
	other.Passphrase = "another"
	if err := errors.Join(Prepare(l.Backup(), plan, other, pgbackrest.Server{Data: "/d"}), undo()); err != nil {
		t.Fatal(err)
	}
	if got, err := Secrets(l.Backup()); err != nil || got != secrets {
		t.Errorf("after a change that failed: %+v, %v", got, err)
	}
	if p, tool, err := Open(l); err != nil || p != plan || tool == nil {
		t.Errorf("%+v, %v", p, err)
	}
	if err := Remove(l); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(l.Backup(), pgbackrest.ConfigFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the secrets stay: %v", err)
	}
}

// TestPlanOfAnotherRelease holds that a tool which this release does not know is named, and not taken for none.
func TestPlanOfAnotherRelease(t *testing.T) {
	l := config.Layout{Dir: t.TempDir()}
	other := plan
	other.Tool = "walg"
	if err := errors.Join(os.Mkdir(l.Backup(), 0o700), Save(l, other)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(l); err == nil || errors.Is(err, ErrNone) || !strings.Contains(err.Error(), "walg") {
		t.Error(err)
	}
}

// TestReadSecrets holds that the environment goes before the file, and that a file which others may read is refused.
func TestReadSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s3.key")
	if err := os.WriteFile(path, []byte("key=id\nsecret=planted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	none := func(string) string { return "" }
	if _, err := ReadSecrets(path, none); fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadSecrets(path, func(name string) string { return map[string]string{SecretEnv: "other"}[name] })
	if err != nil || got != (backup.Secrets{Key: "id", Secret: "other"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := ReadSecrets(path+".missing", none); fail.KindOf(err) != fail.Usage {
		t.Error(err)
	}
}
