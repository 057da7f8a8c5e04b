package catalog

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/views.md")

func reference() string {
	var b strings.Builder
	b.WriteString("# The views\n\n<!-- written by go test ./internal/admin/catalog -update from the views; do not edit -->\n\n" +
		"Tables to SELECT from, in the database `coterie` of any node's listener and with `coterie sql`. The same on every node. Joins, aggregates, WITH and window functions work;\n" +
		"`TOP n`, `[brackets]`, `N'…'`, `::type`, `ILIKE`, `~`, `extract(epoch from x)` are understood. Arrays and LATERAL are not there. Beside the columns, `boolean` ones compare with 0 and 1, too.\n\n" +
		"Functions: `sys.fn_hadr_backup_is_preferred_replica('db')`, `sys.fn_hadr_is_primary_replica('db')`, `now()`, `version()`, `current_setting('…')`, `DATEDIFF`, `@@SERVERNAME`.\n")
	for _, schema := range []string{"sys", "coterie"} {
		for _, v := range views {
			if v.schema != schema || v.name == "columns" {
				continue
			}
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", v.full(), v.about)
			var there, absent []string
			for _, c := range v.columns {
				if c.absent == "" {
					there = append(there, fmt.Sprintf("%s *%s*", c.name, c.typ.name))
				} else {
					absent = append(absent, fmt.Sprintf("%s (%s)", c.name, c.absent))
				}
			}
			b.WriteString(strings.Join(there, ", ") + "\n")
			if absent != nil {
				b.WriteString("\nAlways NULL: " + strings.Join(absent, "; ") + ".\n")
			}
		}
	}
	return b.String()
}

func TestReference(t *testing.T) {
	const path = "../../../docs/views.md"
	want := reference()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != want {
		t.Errorf("docs/views.md is not what the views are (%v): go test ./internal/admin/catalog -run TestReference -update", err)
	}
}
