package sqlrun

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
)

// TestValuesStayInTheirCell holds that a name with a line break or a tab makes no line and no column of a table, and is
// as it was in JSON.
func TestValuesStayInTheirCell(t *testing.T) {
	const name = "a\nn1  PRIMARY\t\u202e"
	r := console.Result{Columns: []console.Column{{Name: "database"}, {Name: "n"}}, Rows: [][]any{{name, 1}}}
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	if err := (Printer{C: c}).Print(r); err != nil || out.String() != "DATABASE                N\na\\nn1  PRIMARY\\t\\u202e  1\n" {
		t.Errorf("%v: %q", err, out.String())
	}
	out.Reset()
	var rows []map[string]any
	if err := (Printer{C: c, JSON: true}).Print(r); err != nil || json.Unmarshal(out.Bytes(), &rows) != nil || rows[0]["database"] != name {
		t.Errorf("%v: %q", err, out.String())
	}
}

// TestErrorsAreShownPrintable holds that a name in an error, which a client of the group has chosen, is escaped where a
// person types statements.
func TestErrorsAreShownPrintable(t *testing.T) {
	socket := t.TempDir() + "/s"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"kind":"refused","message":"the session of \u001b[31mapp waits"}`))
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	c.SetContext(context.Background())
	Printer{C: c}.runInterruptibly(&keyboard{}, api.NewClient(socket, os.Getuid()), "SELECT 1")
	if got := out.String(); !strings.HasPrefix(got, "ERROR: ") || !strings.Contains(got, `\x1b[31mapp`) || strings.ContainsRune(got, '\x1b') {
		t.Errorf("%q", got)
	}
}
