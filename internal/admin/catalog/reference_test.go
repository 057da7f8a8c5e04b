package catalog

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/dialect"
)

var update = flag.Bool("update", false, "write docs/views.md")

func reference() string {
	var b strings.Builder
	b.WriteString("# The views\n\n<!-- written by go test ./internal/admin/catalog -update from the views; do not edit -->\n\n" +
		"Tables to SELECT from, in the database `coterie` of any node's listener and with `coterie sql`. The same on every node. Queries are those of PostgreSQL and of T-SQL:\n" +
		"joins, APPLY and LATERAL, aggregates, WITH and window functions work. Where the two languages differ: [T-SQL in the console](coming-from-sql-server.md#t-sql-in-the-console).\n" +
		"Arrays do not exist. Columns that are `boolean` compare with 0 and 1, too. All times are UTC.\n\n")
	b.WriteString("Functions: `" + strings.ToUpper(strings.Join(dialect.FunctionNames(), "`, `")) + "`, `version()`, `current_setting('…')`, and those of PostgreSQL that psql and other tools ask for. Any other is refused by its name.\n")
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
