package supportcmd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

func unpack(t *testing.T, packed []byte) map[string]string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(h.Name, "/")
		files[path.Clean(name)] = string(data)
	}
}

// TestBundleOfARunningNode holds that what the agent says is in the file without its secrets, and that a part that
// fails does not keep the others out.
func TestBundleOfARunningNode(t *testing.T) {
	a := clitest.NewAgent(t)
	a.SetStatus(api.Status{Node: "n1", Group: "orders", Replicas: []api.Replica{{Name: "n2", Ill: "connect to postgres://a:hunter2@h/x: refused"}}})
	a.On("Explain", func(any) (any, error) { return map[string]string{"last": "password=hunter2"}, nil })
	a.OnSQL("information_schema.tables", []string{"table_schema", "table_name"}, []any{"coterie", "settings"}, []any{"coterie", "broken"}, []any{"pg_catalog", "pg_class"})
	a.OnSQL(`coterie."settings"`, []string{"name", "value"}, []any{"work_mem", "4MB"}, []any{"app.secret", "hunter2"})
	if err := os.WriteFile(filepath.Join(a.Layout.Log(), "agent.log"), []byte("level=INFO msg=\"PGPASSWORD=hunter2\"\nthe end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "b.tar.gz")
	r := clitest.Run(t, Bundle(), a.Layout.Dir, "--output", out, "--json")
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	var said result
	if err := json.Unmarshal([]byte(r.Out), &said); err != nil || said.File != out || said.Bytes == 0 {
		t.Errorf("%v: %s", err, r.Out)
	}
	if st, err := os.Stat(out); err != nil || st.Mode().Perm() != 0o600 || st.Size() != said.Bytes {
		t.Errorf("%v, %v", st, err)
	}
	packed, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, packed)
	for name, text := range files {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, has := range map[string]string{
		"status.json": `"orders"`, "explain.json": "last", "views/coterie.settings.json": "4MB", "log/agent.log": "the end", "README.txt": "views/coterie.broken.json",
		"version.json": "version",
	} {
		if !strings.Contains(files[name], has) {
			t.Errorf("%s lacks %q: %s", name, has, files[name])
		}
	}
	clitest.Run(t, Bundle(), a.Layout.Dir, "--output", out).Refused(t, 2, "is not written over")
	clitest.Run(t, Bundle(), a.Layout.Dir, "--output", "-", "--json").Refused(t, 2, "choose one")
	if files := unpack(t, []byte(clitest.Run(t, Bundle(), a.Layout.Dir, "--output", "-").Out)); files["status.json"] == "" {
		t.Error("no bundle on standard output")
	}
}

// TestBundleWithoutAnAgent holds that a node whose agent does not run gives what is on disk, and that the file says so.
func TestBundleWithoutAnAgent(t *testing.T) {
	l := clitest.NewNode(t)
	if err := os.WriteFile(filepath.Join(l.Log(), "agent.log"), []byte("panic: it ended\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	r := clitest.Run(t, Bundle(), l.Dir)
	if r.Err != nil || !strings.Contains(r.Said, "missing: status.json") || !strings.Contains(r.Said, "Look through it") {
		t.Fatalf("%v\n%s", r.Err, r.Said)
	}
	found, err := filepath.Glob("coterie-node-*.tar.gz")
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	packed, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, packed)
	if !strings.Contains(files["log/agent.log"], "it ended") || !strings.Contains(files["README.txt"], "no agent") {
		t.Error(files["README.txt"])
	}
}
