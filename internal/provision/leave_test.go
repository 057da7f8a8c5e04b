package provision

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestCheckKeep holds which places for the data are refused before anything is changed, and how.
func TestCheckKeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := layoutIn(t, filepath.Join(dir, "node"))
	data, link := filepath.Join(dir, "node", "pgdata"), filepath.Join(dir, "link")
	put(t, filepath.Join(data, "global", "pg_control"), "x")
	if err := os.Symlink(filepath.Join("node", "pgdata"), link); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		data, to string
		kind     fail.Kind
		says     string
	}{
		"beside it":                     {data, filepath.Join(dir, "kept"), "", ""},
		"with a slash at its end":       {data, filepath.Join(dir, "kept") + "/", "", ""},
		"where it is":                   {data, data + "/", "", ""},
		"a link, to beside it":          {link, filepath.Join(dir, "kept"), "", ""},
		"relative":                      {data, "kept", fail.Usage, "absolute"},
		"it exists":                     {data, dir, fail.Refused, "exists already"},
		"its parent does not":           {data, filepath.Join(dir, "no", "kept"), fail.Refused, "cannot be moved"},
		"in itself":                     {data, filepath.Join(data, "kept"), fail.Usage, "in the data directory itself"},
		"below itself":                  {data, filepath.Join(data, "global", "kept"), fail.Usage, "in the data directory itself"},
		"in itself, by a link":          {data, filepath.Join(link, "kept"), fail.Usage, "in the data directory itself"},
		"in itself, which is a link":    {link, filepath.Join(data, "kept"), fail.Usage, "in the data directory itself"},
		"beside it, with the same head": {data, data + "2", "", ""},
	} {
		err := CheckKeep(l, config.Config{PostgreSQL: &config.PostgreSQL{Data: tt.data}}, tt.to)
		if (err == nil) != (tt.says == "") || err != nil && (kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckKeep(l, config.Config{}, filepath.Join(dir, "kept")); kindOf(err) != fail.Usage {
		t.Errorf("a witness: %v", err)
	}
}

// TestMove holds that the directory itself is moved, also where it is reached by a link, and that no link is left.
func TestMove(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(dir string) (from string, err error){
		"a directory": func(dir string) (string, error) { return filepath.Join(dir, "disk", "pgdata"), nil },
		"a link": func(dir string) (string, error) {
			from := filepath.Join(dir, "node", "pgdata")
			return from, os.Symlink(filepath.Join("..", "disk", "pgdata"), from)
		},
		"below a link": func(dir string) (string, error) {
			return filepath.Join(dir, "node", "disk", "pgdata"), os.Symlink(filepath.Join(dir, "disk"), filepath.Join(dir, "node", "disk"))
		},
	} {
		dir := t.TempDir()
		to := filepath.Join(dir, "elsewhere", "kept")
		put(t, filepath.Join(dir, "disk", "pgdata", "PG_VERSION"), "15")
		put(t, filepath.Join(dir, "node", "coterie.yaml"), "x")
		put(t, filepath.Join(dir, "elsewhere", "other"), "x")
		from, err := prepare(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := move(from, to); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if st, err := os.Lstat(to); err != nil || !st.IsDir() || !exists(t, filepath.Join(to, "PG_VERSION")) {
			t.Errorf("%s: not moved: %v, %v", name, st, err)
		}
		if exists(t, from) || exists(t, filepath.Join(dir, "disk", "pgdata")) {
			t.Errorf("%s: something is left", name)
		}
	}
}

// TestCommandNamesItsNode holds that what an interrupted departure says to run again is about its own node, also where
// that is not the usual one: a machine may have several.
func TestCommandNamesItsNode(t *testing.T) {
	t.Parallel()
	l, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Departure{{Node: "n1"}, {Node: "n1", Destroy: true}} {
		if _, err := Erase(l, d, nil); err == nil || !strings.Contains(err.Error(), "run "+d.Command(config.Layout{})+" --node "+l.Dir+" again") {
			t.Errorf("%v", err)
		}
		if text := d.Command(config.Layout{Dir: config.DefaultDir}); strings.Contains(text, "--node") {
			t.Errorf("%s, of the usual one", text)
		}
	}
}
