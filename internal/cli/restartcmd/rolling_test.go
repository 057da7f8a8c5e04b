package restartcmd

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli/clitest"
)

// servers is a group of which n1 is the primary, with what waits for a restart on each server.
type servers struct {
	a     *clitest.Agent
	waits map[string][]string // raise, lower, prepared
	order []string
}

func (g *servers) show() {
	var rows [][]any
	for _, id := range []string{"n1", "n2", "n3"} {
		for _, what := range g.waits[id] {
			switch {
			case what == "raise":
				rows = append(rows, []any{id, "max_worker_processes", "configuration file"})
			case id != "n1" && len(g.waits["n1"]) > 0:
				rows = append(rows, []any{id, "max_connections", "kept while the primary has 200"})
			case id == "n1" && slices.Contains(g.waits[id], "prepared"):
				rows = append(rows, []any{id, "max_connections", "kept while there are prepared transactions"})
			default:
				rows = append(rows, []any{id, "max_connections", "kept until a restart"})
			}
		}
	}
	g.a.OnSQL("pending_restart", []string{"node", "name", "source"}, rows...)
}

func (g *servers) restart(x any) (any, error) {
	r := x.(api.RestartRequest)
	id := string(r.Replica)
	if !r.Server || r.InPlace != (id == "n1") {
		return nil, fmt.Errorf("%+v", r)
	}
	g.order = append(g.order, id)
	g.waits[id] = slices.DeleteFunc(g.waits[id], func(what string) bool {
		return what == "raise" || what == "lower" && (id == "n1" || len(g.waits["n1"]) == 0)
	})
	g.show()
	return nil, nil
}

// TestRollingOrder holds in which order servers restart, and how often, where a setting is lowered of which no
// secondary may have less than the primary.
func TestRollingOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n1, n2, n3 string
		args       string
		want       string
	}{
		"lowered":                             {"lower", "lower", "lower", "--pending", "n1 n2 n3"},
		"lowered, all":                        {"lower", "lower", "lower", "--all", "n1 n2 n3"},
		"raised and lowered":                  {"raise lower", "raise lower", "raise lower", "--pending", "n2 n3 n1 n2 n3"},
		"raised on one, lowered on all":       {"lower", "lower", "raise lower", "--all", "n3 n1 n2 n3"},
		"interrupted behind the primary":      {"", "lower", "", "--pending", "n2"},
		"only on a secondary, which may not":  {"prepared", "lower", "lower", "--pending", ""},
		"the primary alone":                   {"lower", "lower", "lower", "n1", "n1"},
		"a secondary alone, before it may be": {"lower", "lower", "lower", "n2", "n2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := &servers{a: clitest.NewAgent(t), waits: map[string][]string{"n1": strings.Fields(c.n1), "n2": strings.Fields(c.n2), "n3": strings.Fields(c.n3)}}
			of := func(id ag.ReplicaID, role ag.Role, server ag.ServerState) api.Replica {
				return api.Replica{Name: id, Role: role, Server: server, Mode: ag.SynchronousCommit, Sync: ag.Synchronized}
			}
			g.a.SetStatus(api.Status{Node: "n2", Primary: "n1", Replicas: []api.Replica{
				of("n1", ag.RolePrimary, ag.ServerWritable), of("n2", ag.RoleSecondary, ag.ServerRecovery), of("n3", ag.RoleSecondary, ag.ServerRecovery),
			}})
			g.a.On("Restart", g.restart)
			g.show()
			r := clitest.Run(t, Restart(), g.a.Layout.Dir, append([]string{"--postgres"}, c.args)...)
			if got := strings.Join(g.order, " "); r.Err != nil || got != c.want {
				t.Errorf("%v: %q, want %q\n%s%s", r.Err, got, c.want, r.Out, r.Said)
			}
		})
	}
}
