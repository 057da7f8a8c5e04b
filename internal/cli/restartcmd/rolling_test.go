package restartcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
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

// TestNoServer holds that a restart of what has no PostgreSQL is refused with what to run instead.
func TestNoServer(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.OnSQL("pending_restart", []string{"node", "name", "source"})
	a.SetStatus(api.Status{Group: "orders", Node: "w", Primary: "n1", Replicas: []api.Replica{
		{Name: "n1", Mode: ag.SynchronousCommit}, {Name: "n2", Mode: ag.SynchronousCommit, Join: ag.Detached}, {Name: "w", Mode: ag.ConfigurationOnly},
	}})
	for _, tt := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"w"}, 4, "w is a witness, which has no PostgreSQL; to restart its agent run there: coterie restart"},
		{nil, 4, "w is a witness, which has no PostgreSQL; to restart its agent run there: coterie restart"},
		{[]string{"n2"}, 4, "n2 has not joined the group, so its PostgreSQL is not restarted; on it run: coterie sql -c 'ALTER AVAILABILITY GROUP [orders] JOIN'"},
		{[]string{"n1"}, 3, "no majority of the quorum answers w, so no server is restarted; start the members that do not answer, see coterie status"},
		{[]string{"n9"}, 2, "the group has no member n9; the replicas with PostgreSQL are n1"},
	} {
		r := clitest.Run(t, Restart(), a.Layout.Dir, append([]string{"--postgres"}, tt.args...)...)
		if r.Refused(t, tt.code, tt.says); r.Err != nil && r.Err.Error() != tt.says {
			t.Errorf("%q has more than that", r.Err)
		}
	}
}

// TestRollingOrder holds in which order servers restart, and how often, where a setting is lowered of which no
// secondary may have less than the primary, and that --dry-run foretells it.
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
			g.a.SetStatus(api.Status{Quorum: true, Node: "n2", Primary: "n1", Replicas: []api.Replica{
				of("n1", ag.RolePrimary, ag.ServerWritable), of("n2", ag.RoleSecondary, ag.ServerRecovery), of("n3", ag.RoleSecondary, ag.ServerRecovery),
			}})
			g.a.On("Restart", g.restart)
			g.show()
			foretold := clitest.Run(t, Restart(), g.a.Layout.Dir, "--postgres", c.args, "--dry-run", "--json")
			var plan []planned
			if err := json.Unmarshal([]byte(foretold.Out), &plan); err != nil || len(g.order) > 0 {
				t.Errorf("%v: %q, and restarted %q", err, foretold.Out, g.order)
			}
			var order []string
			for _, p := range plan {
				if order = append(order, string(p.Replica)); (p.How == inPlace) != (p.Replica == "n1") {
					t.Errorf("%+v", p)
				}
			}
			if got := strings.Join(order, " "); got != c.want {
				t.Errorf("foretold %q, want %q", got, c.want)
			}
			r := clitest.Run(t, Restart(), g.a.Layout.Dir, append([]string{"--postgres"}, c.args)...)
			if got := strings.Join(g.order, " "); r.Err != nil || got != c.want {
				t.Errorf("%v: %q, want %q\n%s%s", r.Err, got, c.want, r.Out, r.Said)
			}
		})
	}
}

// TestForetoldRestarts holds what --dry-run says of a group in which one server waits: the primary comes last, after it
// has given the leadership away.
func TestForetoldRestarts(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	a.OnSQL("pending_restart", []string{"node", "name", "source"}, []any{"n2", "wal_buffers", "configuration file"})
	a.SetStatus(api.Status{Quorum: true, Node: "n2", Primary: "n1", Replicas: []api.Replica{
		{Name: "n1", Mode: ag.SynchronousCommit}, {Name: "n2", Mode: ag.SynchronousCommit}, {Name: "n3", Mode: ag.AsynchronousCommit}, {Name: "w", Mode: ag.ConfigurationOnly},
	}})
	r := clitest.Run(t, Restart(), a.Layout.Dir, "--postgres", "--all", "--dry-run")
	want := "1 of 3: n3, a secondary: its readers are closed and may connect again\n" +
		"2 of 3: n2, a secondary: its readers are closed and may connect again; for wal_buffers\n" +
		"3 of 3: n1, the primary: it gives the leadership away by a planned failover and restarts as a secondary\n"
	if r.Err != nil || r.Out != want || !strings.Contains(r.Said, "nothing was changed") {
		t.Errorf("%v\n%s%s", r.Err, r.Out, r.Said)
	}
	if r := clitest.Run(t, Restart(), a.Layout.Dir, "--all", "--dry-run"); r.Err == nil || !strings.Contains(r.Err.Error(), "coterie restart --postgres --all --dry-run") {
		t.Errorf("%v", r.Err)
	}
}

// TestInterruptedRestarts holds that an interrupted command asks for no further restart, and says what was done and how
// to go on.
func TestInterruptedRestarts(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	g := &servers{a: clitest.NewAgent(t)}
	of := func(id ag.ReplicaID, role ag.Role, server ag.ServerState) api.Replica {
		return api.Replica{Name: id, Role: role, Server: server, Mode: ag.SynchronousCommit, Sync: ag.Synchronized}
	}
	g.a.SetStatus(api.Status{Quorum: true, Node: "n2", Primary: "n1", Replicas: []api.Replica{
		of("n1", ag.RolePrimary, ag.ServerWritable), of("n2", ag.RoleSecondary, ag.ServerRecovery), of("n3", ag.RoleSecondary, ag.ServerRecovery),
	}})
	g.show()
	g.a.On("Restart", func(x any) (any, error) {
		defer interrupt()
		g.order = append(g.order, string(x.(api.RestartRequest).Replica))
		return nil, nil
	})
	r := clitest.RunIn(ctx, Restart(), g.a.Layout.Dir, "--postgres", "--all")
	const says = "interrupted: 0 of 3 were restarted before, and what was asked of n2 goes on; the same command begins anew"
	if got := strings.Join(g.order, " "); r.Err == nil || !strings.HasPrefix(r.Err.Error(), says) || got != "n2" {
		t.Errorf("%v; restarted %q", r.Err, got)
	}
}

// TestPrimaryWaitsForAnHeir holds that the restart of a primary waits for a secondary whose server somebody else
// restarts, and is refused at once where no other replica answers.
func TestPrimaryWaitsForAnHeir(t *testing.T) {
	t.Parallel()
	a := clitest.NewAgent(t)
	with := func(sync ag.SyncState, connected string) api.Status {
		return api.Status{Primary: "n1", Replicas: []api.Replica{
			{Name: "n1", Mode: ag.SynchronousCommit}, {Name: "n2", Mode: ag.SynchronousCommit, Sync: sync, Connected: connected}, {Name: "w", Mode: ag.ConfigurationOnly, Connected: "CONNECTED"},
		}}
	}
	a.SetStatus(with(ag.Synchronizing, "CONNECTED"), with(ag.Synchronized, "CONNECTED"))
	var said bytes.Buffer
	c := &cobra.Command{}
	c.SetContext(t.Context())
	c.SetErr(&said)
	r := rolling{c: c, cl: api.NewClient(a.Layout.AgentSock(), os.Getuid())}
	if err := r.awaitHeir(with(ag.Synchronizing, "CONNECTED"), "n1"); err != nil || !strings.Contains(said.String(), "waiting for n2 to be synchronized") {
		t.Errorf("%v, said %q", err, said.String())
	}
	if err := r.awaitHeir(with(ag.NotSynchronizing, "DISCONNECTED"), "n1"); fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "if another restart is under way") {
		t.Errorf("nobody answers: %v", err)
	}
}
