package e2e

import (
	"context"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// bothPorts connects by one string with the addresses of both ports, where the driver chooses by the state that a
// server reports, and by the read-write ports with an intent.
func bothPorts(t *testing.T, g *group) {
	g.ready(t)
	writes, err := url.Parse(g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	reads, err := url.Parse(g.ReadOnly())
	if err != nil {
		t.Fatal(err)
	}
	both := *writes
	both.Host += "," + reads.Host
	with := func(u url.URL, pairs ...string) string {
		q := u.Query()
		for i := 0; i < len(pairs); i += 2 {
			q.Set(pairs[i], pairs[i+1])
		}
		u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
		return u.String()
	}
	ro := *writes
	ro.Path += "@ro"
	psql, missing := exec.LookPath("psql")
	for _, c := range []struct {
		dsn, standby string
	}{
		{writes.String(), "f"},
		{reads.String(), "t"},
		{with(ro), "t"},
		{with(both, "target_session_attrs", "any"), "f"},
		{with(both, "target_session_attrs", "read-write"), "f"},
		{with(both, "target_session_attrs", "primary"), "f"},
		{with(both, "target_session_attrs", "read-only"), "t"},
		{with(both, "target_session_attrs", "standby"), "t"},
		{with(both, "target_session_attrs", "prefer-standby"), "t"},
		{with(*writes, "options", "-c coterie.intent=READ_ONLY"), "t"},
		{with(*writes, "options", "-c coterie.intent=READ_ONLY -c coterie.max_lag=1min"), "t"},
	} {
		u, err := url.Parse(c.dsn)
		if err != nil {
			t.Fatal(err)
		}
		u.User = nil // for what is printed
		conn, err := pgx.Connect(t.Context(), c.dsn)
		if err != nil {
			t.Errorf("pgx %s: %v", u, err)
			continue
		}
		var standby bool
		err = conn.QueryRow(t.Context(), "select pg_is_in_recovery()").Scan(&standby)
		_ = conn.Close(context.WithoutCancel(t.Context()))
		if err != nil || standby != (c.standby == "t") {
			t.Errorf("pgx %s: on a standby %v, want %s: %v", u, standby, c.standby, err)
		}
		if missing != nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), psql, "-XAtc", "select pg_is_in_recovery()", c.dsn).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.standby {
			t.Errorf("psql %s: on a standby %s, want %s: %v", u, got, c.standby, err)
		}
	}
}
