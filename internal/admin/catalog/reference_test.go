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
		"Tables to SELECT from, in the database `coterie` of any node's listener and with `coterie sql`. The same on every node, except for what is said to be of this node or a local replica. Queries are those of PostgreSQL and of T-SQL:\n" +
		"joins, APPLY and LATERAL, aggregates, WITH and window functions work. Where the two languages differ: [T-SQL in the console](coming-from-sql-server.md#t-sql-in-the-console).\n" +
		"Arrays do not exist. Columns that are `boolean` compare with 0 and 1, too. All times are UTC.\n\n" +
		"The console has these tables, too: `SELECT column_name, type, meaning FROM coterie.columns WHERE view_name = 'sys.databases'`. Graphical tools show the meanings as comments.\n\n")
	b.WriteString("Functions: `" + strings.ToUpper(strings.Join(dialect.FunctionNames(), "`, `")) + "`, `version()`, `current_setting('…')`, and those of PostgreSQL that psql and other tools ask for. Any other is refused by its name.\n")
	for _, schema := range []string{"sys", "coterie"} {
		for _, v := range views {
			if v.schema != schema {
				continue
			}
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", v.full(), v.about)
			var there []column
			var absent []string
			for _, c := range v.columns {
				if c.null {
					absent = append(absent, fmt.Sprintf("%s (%s)", c.name, c.meaning))
				} else {
					there = append(there, c)
				}
			}
			writeTable(&b, there)
			if absent != nil {
				b.WriteString("\nAlways NULL: " + strings.Join(absent, "; ") + ".\n")
			}
		}
	}
	return b.String()
}

// writeTable writes a table of columns that a terminal shows as well as a browser.
func writeTable(b *strings.Builder, columns []column) {
	name, typ := len("column"), len("type")
	for _, c := range columns {
		name, typ = max(name, len(c.name)), max(typ, len(c.typ.name))
	}
	fmt.Fprintf(b, "| %-*s | %-*s | meaning |\n|%s|%s|---------|\n", name, "column", typ, "type", strings.Repeat("-", name+2), strings.Repeat("-", typ+2))
	for _, c := range columns {
		fmt.Fprintf(b, "| %-*s | %-*s | %s |\n", name, c.name, typ, c.typ.name, c.meaning)
	}
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
