package sqlrun

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestKindOfARefusedStatement holds that a statement which fails ends its command with the exit code of the kind that
// its SQLSTATE tells.
// TestFileThatCannotBeRead holds that a file of statements which is none is a mistake, told with what to name instead.
func TestFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	for _, file := range []string{"/nonexistent.sql", t.TempDir()} {
		clitest.Run(t, SQL(), a.Layout.Dir, "-f", file).Refused(t, 2, "Name a file that you may read, or - for standard input")
	}
}

func TestKindOfARefusedStatement(t *testing.T) {
	t.Parallel()
	sock := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	var answer console.Error // written before a request, read while it is answered
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text, err := json.Marshal(answer)
		if err == nil {
			err = json.NewEncoder(w).Encode(api.SQLAnswer{Error: text})
		}
		if err != nil {
			t.Error(err)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	c := &cobra.Command{}
	c.SetContext(t.Context())
	for state, code := range map[string]int{"42601": 2, "42704": 2, "22023": 2, "0A000": 2, "57P03": 3, "55006": 3, "55000": 4, "XX000": 1, "57014": 1} {
		answer = console.Error{State: state, Number: 41167, Message: "no", Hint: "try"}
		_, err := Ask(c, api.NewClient(sock, os.Getuid()), "SELECT 1")
		var same *console.Error
		want := answer
		want.Number = 0 // which only those who write statements know
		if !errors.As(err, &same) || *same != want || strings.Contains(err.Error(), "Msg") || fail.KindOf(err).ExitCode() != code {
			t.Errorf("%s ends with exit code %d, want %d: %v", state, fail.KindOf(err).ExitCode(), code, err)
		}
	}
}
