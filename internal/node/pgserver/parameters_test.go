package pgserver

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres/parameters"
)

// parametersBed is a server that records statements, and whose file is what the test writes.
func parametersBed(t *testing.T) (p *Parameters, g *ag.Group, said *[]string, down *error) {
	t.Helper()
	layout, err := config.NewLayout(t.TempDir())
	if err == nil {
		err = os.MkdirAll(layout.State(), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	g, said, down = &ag.Group{Replicas: []ag.Replica{{ID: "a"}, {ID: "b"}}}, new([]string), new(error)
	p = NewParameters(ParametersConfig{
		Self: "a", Group: func() *ag.Group { return g }, Layout: layout, Log: slog.New(slog.DiscardHandler),
		Server: parameters.Server{
			PGData: t.TempDir(), Held: func() []string { return nil },
			Exec: func(_ context.Context, sql string) error {
				if *down == nil {
					*said = append(*said, sql)
				}
				return *down
			},
		},
	})
	return p, g, said, down
}

func (p *Parameters) inFile(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.Server.PGData, "postgresql.auto.conf"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestParametersAreTakenBack holds that a setting which the group gives up is removed from the server, also if the
// server does not answer at first and the agent starts again, and that settings of others stay.
func TestParametersAreTakenBack(t *testing.T) {
	p, g, said, down := parametersBed(t)
	p.apply(t.Context())
	if len(*said) != 0 {
		t.Fatalf("without settings: %q", *said)
	}
	g.Parameters = map[string]string{"work_mem": "64MB"}
	g.Replicas[1].Options.Parameters = map[string]string{"jit": "off"} // of another replica
	p.inFile(t, "jit = 'off'\nother = '1'\n")                          // as in a copy of that replica
	p.apply(t.Context())
	want := []string{`ALTER SYSTEM RESET "jit"`, `ALTER SYSTEM SET "work_mem" = '64MB'`, "SELECT pg_reload_conf()"}
	if !slices.Equal(*said, want) {
		t.Errorf("said %q, want %q", *said, want)
	}
	p.inFile(t, "work_mem = '64MB'\nother = '1'\n")
	g.Parameters, g.Replicas[1].Options.Parameters = nil, nil
	*down, *said = errors.New("the server is down"), nil
	p.apply(t.Context())
	again := NewParameters(p.ParametersConfig) // the agent starts again
	if set, err := again.ForStart(); err != nil || len(set) != 1 || set["work_mem"] != nil {
		t.Errorf("for a start: %v, %v", set, err)
	}
	*down = nil
	again.apply(t.Context())
	if want := []string{`ALTER SYSTEM RESET "work_mem"`, "SELECT pg_reload_conf()"}; !slices.Equal(*said, want) {
		t.Errorf("said %q, want %q", *said, want)
	}
	again.inFile(t, "work_mem = '1MB'\nother = '1'\n") // an administrator's, now that the group has none
	*said = nil
	again.apply(t.Context())
	if len(*said) != 0 {
		t.Errorf("an administrator's own setting: %q", *said)
	}
}

// TestParameterGivenUpMeanwhile holds that a setting is removed from the server which the group gave up while it was
// being put in force.
func TestParameterGivenUpMeanwhile(t *testing.T) {
	p, g, said, _ := parametersBed(t)
	g.Parameters = map[string]string{"work_mem": "64MB"}
	exec := p.Server.Exec
	p.Server.Exec = func(ctx context.Context, sql string) error {
		g.Parameters = nil // by another node
		return exec(ctx, sql)
	}
	p.apply(t.Context())
	p.inFile(t, "work_mem = '64MB'\n")
	*said = nil
	p.apply(t.Context())
	if want := []string{`ALTER SYSTEM RESET "work_mem"`, "SELECT pg_reload_conf()"}; !slices.Equal(*said, want) {
		t.Errorf("said %q, want %q", *said, want)
	}
}

// TestUnvouchedParameters holds that a setting that can run programs is not put in force unless a replica has asked
// this node to judge that very value, also after the agent has started again.
func TestUnvouchedParameters(t *testing.T) {
	p, g, said, _ := parametersBed(t)
	g.Parameters = map[string]string{"work_mem": "64MB", "archive_command": "evil", "shared_preload_libraries": "x", "auto_explain.log_min_duration": "1"}
	p.apply(t.Context())
	if want := []string{`ALTER SYSTEM SET "work_mem" = '64MB'`, "SELECT pg_reload_conf()"}; !slices.Equal(*said, want) {
		t.Errorf("said %q, want %q", *said, want)
	}
	if err := p.Vouch(map[string]string{"archive_command": "good", "work_mem": "1MB"}); err != nil {
		t.Fatal(err)
	}
	p = NewParameters(p.ParametersConfig)
	p.inFile(t, "work_mem = '64MB'\nshared_preload_libraries = 'ours'\n") // as of a copy's source
	*said = nil
	if p.apply(t.Context()); len(*said) != 0 {
		t.Errorf("another value than that which was judged: %q", *said)
	}
	g.Parameters["archive_command"] = "good"
	p.apply(t.Context())
	if want := []string{`ALTER SYSTEM SET "archive_command" = 'good'`, "SELECT pg_reload_conf()"}; !slices.Equal(*said, want) {
		t.Errorf("said %q, want %q", *said, want)
	}
}

// TestPendingRestarts holds that the number of settings that wait for a restart is known only while the server says it.
func TestPendingRestarts(t *testing.T) {
	p, _, _, down := parametersBed(t)
	answer := "2"
	limits := `[["max_connections","150","150"]]`
	p.Server.Text = func(_ context.Context, sql string) (string, error) {
		if strings.Contains(sql, "json_agg") {
			return limits, *down
		}
		return answer, *down
	}
	if n, ok := p.PendingRestarts(); ok {
		t.Errorf("%d before the server was asked", n)
	}
	for _, step := range []struct {
		answer string
		down   error
		want   int
		known  bool
	}{{"2", nil, 2, true}, {"0", nil, 0, true}, {"1", errors.New("it does not answer"), 0, false}, {"1", nil, 1, true}, {"many", nil, 0, false}} {
		answer, *down = step.answer, step.down
		if said := p.countPending(t.Context()); said != step.known {
			t.Errorf("%+v: said %v", step, said)
		}
		if n, ok := p.PendingRestarts(); ok != step.known || ok && n != step.want {
			t.Errorf("%+v: %d, %v", step, n, ok)
		}
	}
	// Of the limits one is raised, one lowered, and one has what every server has at least.
	limits, answer, *down = `[["max_connections","150","100"],["max_worker_processes","8","16"],["max_wal_senders","20","10"],["max_locks_per_transaction","64","0x40"]]`, "1", nil
	if !p.countPending(t.Context()) {
		t.Error("the server says it")
	}
	if n, ok := p.PendingRestarts(); !ok || n != 3 {
		t.Errorf("with limits: %d, %v", n, ok)
	}
}
