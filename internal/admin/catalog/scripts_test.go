package catalog

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// scriptFacts are the facts of demo with a listener, a copy being made and different commit times.
func scriptFacts() Facts {
	f := demo()
	f.Group.Options.Listeners = []ag.Listener{{Name: "shop-l", Port: 1433, Addresses: []string{"10.0.0.9/24"}}}
	n := f.Nodes["c"]
	old := noon.Add(-61 * time.Second)
	n.Commit = &old
	f.Nodes["c"] = n
	n = f.Nodes["b"]
	n.Seedings = []Seeding{{
		ID: "7a0e7f0e-4c1c-4d4e-9a63-0a9f3f6c1f11", Started: noon.Add(-time.Minute), State: "SEEDING", Source: "a", Attempts: 1, Done: 10 << 20, Total: 30 << 20, Rate: 1 << 20,
	}}
	f.Nodes["b"] = n
	return f
}

// TestMonitoringScripts runs scripts as administrators of SQL Server use them, and compares headings and rows with
// those in testdata/scripts.out. The option -update writes that file.
func TestMonitoringScripts(t *testing.T) {
	text, err := os.ReadFile("testdata/scripts.sql")
	if err != nil {
		t.Fatal(err)
	}
	f := scriptFacts()
	c := open(t, &f)
	var out strings.Builder
	parts := strings.Split("\n"+string(text), "\n-- name: ")[1:]
	for _, p := range parts {
		name, sql, _ := strings.Cut(p, "\n")
		heading, rows := script(t, c, strings.TrimSuffix(strings.TrimSpace(sql), ";"))
		out.WriteString("-- name: " + name + "\n" + heading + "\n")
		if rows != "" {
			out.WriteString(rows + "\n")
		}
	}
	if len(parts) < 60 {
		t.Errorf("%d scripts", len(parts))
	}
	const path = "testdata/scripts.out"
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wants, gots := strings.Split(string(want), "-- name: "), strings.Split(out.String(), "-- name: ")
	for i := range max(len(wants), len(gots)) {
		if i >= len(wants) || i >= len(gots) || wants[i] != gots[i] {
			t.Errorf("got\n%s\nwant\n%s", at(gots, i), at(wants, i))
		}
	}
}

func at(list []string, i int) string {
	if i < len(list) {
		return list[i]
	}
	return "nothing"
}
