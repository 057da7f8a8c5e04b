package upgradecmd

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/cli/clitest"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

const (
	older = "0.1.0 (commit aaa, 2026-11-01)"
	newer = "0.2.0 (commit bbb, 2026-11-28)"
)

// machines are a group of which n1 is the primary, n3 commits asynchronously and w is a witness, with the program of
// each. n2 is asked.
type machines struct {
	a        *clitest.Agent
	s        api.Status
	programs []api.Program
	did      []string // in order
	stuck    ag.ReplicaID
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	of := func(id ag.ReplicaID, role ag.Role, mode ag.AvailabilityMode, server ag.ServerState, sync ag.SyncState) api.Replica {
		return api.Replica{Name: id, Role: role, Mode: mode, Server: server, Sync: sync, Connected: "CONNECTED"}
	}
	g := &machines{a: clitest.NewAgent(t), s: api.Status{Group: "orders", Node: "n2", Primary: "n1", Quorum: true, Replicas: []api.Replica{
		of("n1", ag.RolePrimary, ag.SynchronousCommit, ag.ServerWritable, ag.Synchronized),
		of("n2", ag.RoleSecondary, ag.SynchronousCommit, ag.ServerRecovery, ag.Synchronized),
		of("n3", ag.RoleSecondary, ag.AsynchronousCommit, ag.ServerRecovery, ag.Synchronizing),
		of("w", api.RoleWitness, ag.ConfigurationOnly, "", ""),
	}}}
	for _, m := range g.s.Replicas {
		g.programs = append(g.programs, api.Program{Node: m.Name, Running: older, Installed: newer})
	}
	g.a.SetStatus(g.s)
	g.a.On("Programs", func(any) (any, error) { return append([]api.Program{}, g.programs...), nil })
	g.a.On("Failover", func(x any) (any, error) {
		to := x.(api.FailoverRequest).To
		g.did = append(g.did, "failover to "+string(to))
		g.lead(to)
		return api.FailoverResult{From: "n1", To: to}, nil
	})
	g.a.On("RestartAgent", func(x any) (any, error) {
		r := x.(api.AgentRequest)
		what := string(r.Node)
		if r.Leads {
			what += " in place"
		}
		if (r.Node == g.s.Primary) != r.Leads {
			return nil, errors.New("the primary is asked as a secondary, or the other way round")
		}
		g.did = append(g.did, what)
		if p := g.of(r.Node); r.Node != g.stuck {
			p.Running = p.Installed
		}
		return nil, nil
	})
	return g
}

func (g *machines) of(id ag.ReplicaID) *api.Program {
	for i := range g.programs {
		if g.programs[i].Node == id {
			return &g.programs[i]
		}
	}
	return nil
}

func (g *machines) lead(id ag.ReplicaID) {
	g.s.Primary, g.s.Replicas = id, append([]api.Replica{}, g.s.Replicas...)
	for i := range g.s.Replicas {
		m := &g.s.Replicas[i]
		switch {
		case m.Name == id:
			m.Role, m.Server = ag.RolePrimary, ag.ServerWritable
		case m.Mode != ag.ConfigurationOnly:
			m.Role, m.Server = ag.RoleSecondary, ag.ServerRecovery
		}
	}
	g.a.SetStatus(g.s)
}

func (g *machines) run(t *testing.T, args ...string) clitest.Ran {
	t.Helper()
	return clitest.Run(t, Upgrade(), g.a.Layout.Dir, append([]string{"agents"}, args...)...)
}

// TestAgentsInOrder holds the order in which agents are replaced, that --dry-run foretells it, and that agents which
// run the installed version are left alone.
func TestAgentsInOrder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		done []ag.ReplicaID
		args []string
		want string
		how  string
	}{
		"all":                         {nil, nil, "w, n3, n2, failover to n2, n1", "w witness, n3 secondary, n2 secondary, n1 after_failover"},
		"in place":                    {nil, []string{"--in-place"}, "w, n3, n2, n1 in place", "w witness, n3 secondary, n2 secondary, n1 in_place"},
		"begun before":                {[]ag.ReplicaID{"w", "n2"}, nil, "n3, failover to n2, n1", "n3 secondary, n1 after_failover"},
		"only the primary is missing": {[]ag.ReplicaID{"w", "n2", "n3"}, nil, "failover to n2, n1", "n1 after_failover"},
		"nothing to do":               {[]ag.ReplicaID{"w", "n1", "n2", "n3"}, nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newMachines(t)
			for _, id := range c.done {
				g.of(id).Running = newer
			}
			r := g.run(t, append(c.args, "--dry-run", "--json")...)
			var plan agentsResult
			if err := json.Unmarshal([]byte(r.Out), &plan); err != nil || r.Err != nil || len(g.did) > 0 || !plan.DryRun || len(plan.Agents) != 4 {
				t.Fatalf("%v, %v, did %q: %s", r.Err, err, g.did, r.Out)
			}
			var how []string
			for _, a := range plan.Agents {
				switch {
				case a.State == stateWaits && a.Running == older && a.Installed == newer:
					how = append(how, string(a.Node)+" "+a.How)
				case a.State != stateCurrent || a.Running != newer:
					t.Errorf("%+v", a)
				}
			}
			if got := strings.Join(how, ", "); got != c.how {
				t.Errorf("foretold %q, want %q", got, c.how)
			}
			r = g.run(t, append(c.args, "--json")...)
			var out agentsResult
			if err := json.Unmarshal([]byte(r.Out), &out); err != nil || r.Err != nil {
				t.Fatalf("%v, %v: %s%s", r.Err, err, r.Out, r.Said)
			}
			if got := strings.Join(g.did, ", "); got != c.want {
				t.Errorf("did %q, want %q", got, c.want)
			}
			if (out.Failover != nil) != strings.Contains(c.want, "failover") {
				t.Errorf("%+v", out.Failover)
			}
			for _, a := range out.Agents {
				if (a.How != "") != (a.State == stateUpgraded) || (a.How != "") != (a.Took > 0) {
					t.Errorf("%+v", a)
				}
			}
			if again := g.run(t); again.Err != nil || !strings.Contains(again.Said, "nothing to do") || strings.Join(g.did, ", ") != c.want {
				t.Errorf("run again: %v, %s, did %q", again.Err, again.Said, g.did)
			}
		})
	}
}

// TestAgentsForetold holds what people read of the versions, those of nodes on which the package was forgotten too.
func TestAgentsForetold(t *testing.T) {
	t.Parallel()
	g := newMachines(t)
	g.of("n3").Installed = older
	r := g.run(t, "--dry-run")
	for _, want := range []string{
		"1 of 3: w, a witness: no client notices\n        runs " + older + ", installed is " + newer + "\n",
		"3 of 3: n1, the primary: it gives the leadership away by a planned failover, and restarts as a secondary\n",
		"n3: runs " + older + ", which is the version installed there; its agent is left alone\n",
	} {
		if !strings.Contains(r.Out, want) {
			t.Errorf("%q is missing in\n%s", want, r.Out)
		}
	}
	if r.Code != 4 || r.Err == nil || !strings.Contains(r.Err.Error(), newer+" on n1, n2, w; "+older+" on n3. Install one version on all of them") {
		t.Errorf("%d, %v", r.Code, r.Err)
	}
	if r := g.run(t); r.Code != 4 || len(g.did) > 0 {
		t.Errorf("%v, did %q", r.Err, g.did)
	}
	if r := g.run(t, "--allow-mixed"); r.Err != nil || strings.Join(g.did, ", ") != "w, n2, failover to n2, n1" {
		t.Errorf("%v, did %q", r.Err, g.did)
	}
}

// TestAgentsRefused holds when no agent is asked to restart, and what to run instead.
func TestAgentsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(g *machines)
		args   []string
		code   int
		says   string
	}{
		"a member is silent":  {func(g *machines) { *g.of("n3") = api.Program{Node: "n3", Silent: true, Problem: "it does not answer"} }, nil, 3, "n3 does not answer, and while a member is missing no other one is restarted; start it, or take it out: coterie member remove n3"},
		"of earlier versions": {func(g *machines) { g.of("n3").Older, g.of("n1").Older = true, true }, nil, 4, "n1, n3 run a version of Coterie that cannot be asked by another node; there, one after the other, run coterie restart"},
		"a broken program": {func(g *machines) {
			g.of("w").Installed, g.of("w").Problem = "", "there is no program at /usr/bin/coterie any more"
		}, nil, 4, "w could not begin another agent: there is no program at /usr/bin/coterie any more; install the program there again"},
		"no quorum":                            {func(g *machines) { g.s.Quorum = false }, nil, 3, "no majority of the quorum answers n2"},
		"nobody may lead":                      {func(g *machines) { g.s.Replicas[1].Sync = ag.Synchronizing }, nil, 4, "n1 is the primary, and no synchronized secondary could lead while its agent restarts; with --in-place it stays the primary"},
		"nobody with the new program may lead": {func(g *machines) { g.of("n2").Installed = older }, []string{"--allow-mixed"}, 4, "n1 is the primary, and no synchronized secondary could lead"},
		"on a witness":                         {func(g *machines) { g.s.Node = "w" }, nil, 4, "w is a witness, which may not ask other nodes for that; run coterie upgrade agents on a replica"},
		"too long a drain":                     {func(*machines) {}, []string{"--drain", "1000h"}, 2, "--drain 1000h0m0s"},
		"too short a wait":                     {func(*machines) {}, []string{"--wait", "1s"}, 2, "--wait 1s: choose at least 5s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newMachines(t)
			c.change(g)
			g.a.SetStatus(g.s)
			if r := g.run(t, c.args...); len(g.did) > 0 {
				t.Errorf("did %q", g.did)
			} else {
				r.Refused(t, c.code, c.says)
			}
		})
	}
}

// TestAgentsStopped holds what is said where a node does not come back as another program, or refuses, and that the
// same command goes on.
func TestAgentsStopped(t *testing.T) {
	t.Parallel()
	g := newMachines(t)
	g.stuck = "n3"
	r := g.run(t, "--wait", "5s", "--json")
	const says = "n3 still runs " + older + " 5s after its agent was asked to restart; look at log/agent.log in its node directory, or journalctl -u coterie, and coterie status; " +
		"upgraded: w; asked, which goes on by itself: n3; not asked: n2, n1. To go on: coterie upgrade agents, which leaves out what is done"
	if r.Err == nil || r.Code != 3 || r.Err.Error() != says || strings.Join(g.did, ", ") != "w, n3" {
		t.Errorf("%d, %v, did %q", r.Code, r.Err, g.did)
	}
	var out agentsResult
	if err := json.Unmarshal([]byte(r.Out), &out); err != nil || len(out.Agents) != 4 || out.Agents[0].State != stateUpgraded || out.Agents[1].State != stateAsked || out.Agents[2].State != stateWaits {
		t.Errorf("%v: %s", err, r.Out)
	}
	g.stuck, g.did = "", nil
	if r := g.run(t); r.Err != nil || strings.Join(g.did, ", ") != "n3, n2, failover to n2, n1" {
		t.Errorf("%v, did %q", r.Err, g.did)
	}
	g = newMachines(t)
	g.a.On("RestartAgent", func(any) (any, error) { return nil, fail.Refusedf("n9 is busy") })
	if r := g.run(t); r.Code != 4 || !strings.HasPrefix(r.Err.Error(), "n9 is busy; upgraded: none; not asked: w, n3, n2, n1. ") {
		t.Errorf("%d, %v", r.Code, r.Err)
	}
}

// TestAgentsInterrupted holds that an interrupted command asks no further node, and says how to go on.
func TestAgentsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	g := newMachines(t)
	g.a.On("RestartAgent", func(x any) (any, error) {
		g.did = append(g.did, string(x.(api.AgentRequest).Node))
		interrupt()
		return nil, nil
	})
	r := clitest.RunIn(ctx, Upgrade(), g.a.Layout.Dir, "agents")
	const says = "interrupted; upgraded: none; asked, which goes on by itself: w; not asked: n3, n2, n1. To go on: coterie upgrade agents, which leaves out what is done"
	if r.Err == nil || r.Code != 3 || r.Err.Error() != says || strings.Join(g.did, ", ") != "w" {
		t.Errorf("%d, %v, did %q", r.Code, r.Err, g.did)
	}
}

// TestAgentsGoBack holds that agents are replaced by a version that cannot be asked for itself.
func TestAgentsGoBack(t *testing.T) {
	t.Parallel()
	g := newMachines(t)
	g.a.On("RestartAgent", func(x any) (any, error) {
		id := x.(api.AgentRequest).Node
		g.did = append(g.did, string(id))
		*g.of(id) = api.Program{Node: id, Older: true, Problem: "its agent is of a version that does not say it"}
		return nil, nil
	})
	g.s.Node = "n1"
	g.lead("n1")
	if r := g.run(t, "--in-place"); r.Err != nil || strings.Join(g.did, ", ") != "w, n3, n2, n1" {
		t.Errorf("%v, did %q", r.Err, g.did)
	}
}
