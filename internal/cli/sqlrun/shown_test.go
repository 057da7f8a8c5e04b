package sqlrun

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
)

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
