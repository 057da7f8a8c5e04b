package adopt

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnitOfACluster holds that the unit is found which starts a cluster at boot, also where an administrator has given
// it another directory, or names a link; and that no unit is taken for that of a directory which it does not use.
func TestUnitOfACluster(t *testing.T) {
	t.Parallel()
	const usual = "lib/systemd/system/postgresql-15.service"
	const added = "etc/systemd/system/postgresql-15.service.d/override.conf"
	for name, tt := range map[string]struct {
		files map[string]string // of systemd; DATA, LINK and OTHER stand for directories
		want  string
	}{
		"none":                   {nil, ""},
		"the variable":           {map[string]string{usual: "[Service]\nEnvironment=PGDATA=DATA/\nExecStart=/usr/bin/postgres -D ${PGDATA}\n"}, "postgresql-15.service"},
		"the option":             {map[string]string{usual: "[Service]\nExecStart=/usr/bin/postgres -D DATA\n"}, "postgresql-15.service"},
		"a link":                 {map[string]string{usual: "[Service]\nEnvironment=\"PGDATA=LINK\"\n"}, "postgresql-15.service"},
		"another":                {map[string]string{usual: "[Service]\nEnvironment=PGDATA=OTHER\n"}, ""},
		"moved here":             {map[string]string{usual: "[Service]\nEnvironment=PGDATA=OTHER\n", added: "[Service]\nEnvironment=PGDATA=DATA\n"}, "postgresql-15.service"},
		"moved away":             {map[string]string{usual: "[Service]\nEnvironment=PGDATA=DATA\n", added: "[Service]\nEnvironment=PGDATA=OTHER\n"}, ""},
		"added something else":   {map[string]string{usual: "[Service]\nEnvironment=PGDATA=DATA\n", added: "[Service]\nLimitNOFILE=9\n"}, "postgresql-15.service"},
		"the administrator's":    {map[string]string{"etc/systemd/system/postgres.service": "[Service]\nExecStart=/usr/bin/postgres -D DATA\n"}, "postgres.service"},
		"masked, and moved here": {map[string]string{usual: "[Service]\nEnvironment=PGDATA=OTHER\n", "etc/systemd/system/postgresql-15.service": "", added: "[Service]\nEnvironment=PGDATA=DATA\n"}, "postgresql-15.service"},
	} {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		data, link, other := filepath.Join(root, "data"), filepath.Join(root, "link"), filepath.Join(root, "other")
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(data, link); err != nil {
			t.Fatal(err)
		}
		for file, text := range tt.files {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			text = strings.NewReplacer("=DATA", "="+data, " DATA", " "+data, "LINK", link, "OTHER", other).Replace(text)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := FindStart(Cluster{Data: data, Root: root}).Unit; got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
