package listener

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// lostOrSame checks that a session either has kept what query shows, or was ended with a reason.
func (g *group) lostOrSame(conn *pgx.Conn, query, want string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), 60*time.Second)
	defer cancel()
	var got string
	err := conn.QueryRow(ctx, query, pgx.QueryExecModeSimpleProtocol).Scan(&got)
	switch {
	case err != nil && strings.Contains(err.Error(), "57P01"):
		g.t.Logf("%s: %v", query, err)
	case err != nil:
		g.t.Errorf("%s: %v", query, err)
	case got != want:
		g.t.Errorf("%s: %q after the move; want %q", query, got, want)
	}
}

// extended executes statements by the extended protocol, with the unnamed statement.
func (g *group) extended(conn *pgx.Conn, statements ...string) {
	g.t.Helper()
	for _, q := range statements {
		if _, err := conn.PgConn().ExecParams(g.t.Context(), q, nil, nil, nil, nil).Close(); err != nil {
			g.t.Fatalf("%s: %v", q, err)
		}
	}
}

// A setting of one's own is kept, however it was set, or the session ends.
func TestMoveKeepsSettingsHoweverTheyAreSet(t *testing.T) {
	g := movingGroup(t, nil)
	for _, statement := range []string{
		"set my.x = 'kept'", "set /* a */ my.x = 'kept'", "set -- a\n my.x = 'kept'",
		"set session /* a */ my.x = 'kept'", "set my . x = 'kept'", `set "my" . "x" to 'kept'`, `set U&"m\0079".x = 'kept'`,
		"select set_config -- a\n('my.x', 'kept', false)", `select U&"s\0065t_config"('my.x', 'kept', false)`,
		"select pg_catalog. set_config('my.x', 'kept', false)",
	} {
		for _, protocol := range []string{"simple", "extended"} {
			conn := g.mustDial(g.rw, "user=postgres")
			if protocol == "simple" {
				g.do(conn, statement)
			} else {
				g.extended(conn, statement)
			}
			g.failOver("b")
			t.Logf("%q by the %s protocol", statement, protocol)
			g.lostOrSame(conn, "select current_setting('my.x', true)", "kept")
			g.failOver("a")
		}
	}
}
