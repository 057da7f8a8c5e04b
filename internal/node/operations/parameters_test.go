package operations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/node/rpc"
)

// TestParametersAreJudgedFirst holds that nothing is written before each replica that answers has taken the values that
// its own server would get.
func TestParametersAreJudgedFirst(t *testing.T) {
	t.Parallel()
	refusal := fail.Refusedf("library x is not installed on this host")
	for name, tt := range map[string]struct {
		text    string
		here    map[string]error
		there   func(to ag.ReplicaID, values map[string]string) ([]string, error) // nil: nobody answers
		kind    fail.Kind
		says    string // of the error
		notices string
		written bool
	}{
		"all take it": {
			text: "SET PARAMETER work_mem = '64MB'", there: func(ag.ReplicaID, map[string]string) ([]string, error) { return nil, nil }, written: true,
		},
		"for one replica, only that is asked": {
			text: "SET PARAMETER work_mem = '64MB' FOR REPLICA b",
			there: func(to ag.ReplicaID, values map[string]string) ([]string, error) {
				if to != "b" || len(values) != 1 || values["work_mem"] != "64MB" {
					return nil, errors.New("not asked for")
				}
				return nil, nil
			}, written: true,
		},
		"here it is refused": {
			text: "SET PARAMETER shared_preload_libraries = 'x'", here: map[string]error{"shared_preload_libraries": refusal},
			there: func(ag.ReplicaID, map[string]string) ([]string, error) { return nil, nil }, kind: fail.Refused, says: "on a: library x",
		},
		"there it is refused": {
			text:  "SET PARAMETER shared_preload_libraries = 'x'",
			there: func(ag.ReplicaID, map[string]string) ([]string, error) { return nil, refusal }, kind: fail.Refused, says: "library x is not installed",
		},
		"one does not answer": {text: "SET PARAMETER work_mem = '64MB'", notices: "b did not say whether its server takes the settings", written: true},
		"the only one that is asked does not answer": {
			text: "SET PARAMETER work_mem = '64MB' FOR REPLICA b", notices: "b did not say whether its server takes the settings", written: true,
		},
		"nor would this server take it": {
			text: "SET PARAMETER work_mem = 'lots' FOR REPLICA b", here: map[string]error{"work_mem": fail.Usagef("invalid value")},
			kind: fail.Usage, says: "in place of b",
		},
		"a restart is needed": {
			text: "SET PARAMETER max_connections = 300", there: func(ag.ReplicaID, map[string]string) ([]string, error) { return []string{"max_connections"}, nil },
			notices: "max_connections: in force when each server has been restarted", written: true,
		},
		"a smaller value would not be in force": {
			text: "SET PARAMETER max_connections = 50", there: func(ag.ReplicaID, map[string]string) ([]string, error) { return []string{"max_connections"}, nil },
			notices: "max_connections: no secondary may have less than the primary", written: true,
		},
		"commits would not wait": {
			text: "SET PARAMETER synchronous_commit = LOCAL", there: func(ag.ReplicaID, map[string]string) ([]string, error) { return nil, nil },
			kind: fail.Refused, says: "ALLOW_RELAXED_COMMIT = ON",
		},
		"commits that wait longer": {
			text: "SET PARAMETER synchronous_commit = remote_apply", there: func(ag.ReplicaID, map[string]string) ([]string, error) { return nil, nil }, written: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.server.refuses = tt.here
			if tt.there != nil {
				b.calls["check-settings"] = func(_ context.Context, to ag.ReplicaID, in any) (any, error) {
					values := map[string]string{}
					for name, value := range in.(map[string]*string) {
						if value != nil {
							values[name] = *value
						}
					}
					return tt.there(to, values)
				}
			}
			was := b.store.rev
			_, notices, err := b.run(t, alter+tt.text+" WITH NOWAIT")
			if (err == nil) != tt.written || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || fail.KindOf(err) != tt.kind) {
				t.Errorf("%v (%s)", err, fail.KindOf(err))
			}
			if !strings.Contains(notices, tt.notices) {
				t.Errorf("notices: %s", notices)
			}
			if written := b.store.rev != was; written != tt.written {
				t.Errorf("written: %v", written)
			}
		})
	}
}

// TestTakingBackASettingIsJudged holds that the replicas judge what remains for sessions where a setting is taken back.
func TestTakingBackASettingIsJudged(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.calls["check-settings"] = func(context.Context, ag.ReplicaID, any) (any, error) { return []string(nil), nil }
	if _, _, err := b.run(t, alter+"SET PARAMETER max_connections = 300, work_mem = '1MB' WITH NOWAIT"); err != nil {
		t.Fatal(err)
	}
	b.server.refuses = map[string]error{"no max_connections": fail.Refusedf("too little room")}
	if _, _, err := b.run(t, alter+"RESET PARAMETER max_connections WITH NOWAIT"); fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "too little room") {
		t.Errorf("%v", err)
	}
	if _, _, err := b.run(t, alter+"RESET PARAMETER work_mem WITH NOWAIT"); err != nil {
		t.Errorf("another setting: %v", err)
	}
}

// TestMemoryOfTheSmallestHost holds that settings that need more memory together than a host has are told of, with the
// arithmetic of the smallest host, and refused where a server would not start.
func TestMemoryOfTheSmallestHost(t *testing.T) {
	const set = alter + "SET PARAMETER max_connections = 5000 WITH NOWAIT"
	b := newBed(t)
	b.calls["check-settings"] = func(context.Context, ag.ReplicaID, any) (any, error) { return []string{}, nil }
	b.calls["weigh-settings"] = func(context.Context, ag.ReplicaID, any) (any, error) {
		return rpc.Weight{Host: 1 << 30, Warning: "its sum"}, nil
	}
	b.server.host, b.server.heavy = 2<<30, "our sum"
	_, notices, err := b.run(t, set)
	if err != nil || !strings.Contains(notices, ": its sum") || strings.Contains(notices, "our sum") {
		t.Errorf("%v: %s", err, notices)
	}
	b.server.weighs = fail.Refusedf("it would not start")
	was := b.store.rev
	if _, _, err := b.run(t, alter+"SET PARAMETER max_connections = 6000 WITH NOWAIT"); fail.KindOf(err) != fail.Refused || b.store.rev != was {
		t.Errorf("refused: %v", err)
	}
}

func TestAWitnessJudgesNoParameters(t *testing.T) {
	b := newBed(t)
	b.Server = nil
	if _, err := b.CheckParameters(t.Context(), map[string]*string{"work_mem": new(string)}); fail.KindOf(err) != fail.Refused {
		t.Error(err)
	}
}

// TestServersDoNotRestartAtOnce holds that of two secondaries on which commits count the second does not restart while
// the first does not stream, as when two administrators restart all of them, and that the only one may restart.
func TestServersDoNotRestartAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		counted string
		reach   string
		streams bool
		refused bool
	}{
		"the other one streams":        {"a c", "b c", true, false},
		"the other one restarts":       {"a c", "b c", false, true},
		"the other one is not reached": {"a c", "b", true, true},
		"it is the only one":           {"a", "b", false, false},
		"commits do not count on it":   {"c", "b", false, false},
	} {
		b := newBed(t)
		b.agent.err = errors.New("it is asked") // so that nothing waits for its end
		b.store.alter(func(x *etcd.Snapshot) {
			x.Record.Epoch.Leader, x.Record.State.Leader, x.Record.State.V = "b", "b", nil
			for _, id := range strings.Fields(tt.counted) {
				x.Record.State.V = append(x.Record.State.V, ag.Member{ID: ag.ReplicaID(id)})
			}
		})
		b.agent.view.Record.Epoch.Leader, b.agent.view.Local.Server, b.agent.view.Reach = "b", ag.ServerRecovery, nil
		for _, id := range strings.Fields(tt.reach) {
			b.agent.view.Reach = append(b.agent.view.Reach, ag.ReplicaID(id))
		}
		b.agent.statuses = map[ag.ReplicaID]agent.Status{"c": {Stream: tt.streams}}
		err := b.RestartServer(t.Context())
		if fail.KindOf(err) != fail.Unhealthy || strings.Contains(err.Error(), "does not stream") != tt.refused || (b.agent.servers == 0) != tt.refused {
			t.Errorf("%s: %v, %d restarts", name, err, b.agent.servers)
		}
	}
}

// TestRestartOfAServer holds whose server may be restarted, and that another node's is asked for there.
func TestRestartOfAServer(t *testing.T) {
	b := newBed(t)
	if err := b.Restart(t.Context(), api.RestartRequest{Server: true}); fail.KindOf(err) != fail.Refused || b.agent.servers != 0 {
		t.Errorf("of the primary: %v", err)
	}
	var asked []ag.ReplicaID
	b.calls["restart-server"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
		asked = append(asked, to)
		return struct{}{}, nil
	}
	if err := b.Restart(t.Context(), api.RestartRequest{Server: true, Replica: "b"}); err != nil || len(asked) != 1 || asked[0] != "b" || len(b.agent.restarts) != 0 {
		t.Errorf("of another: %v, %v", err, asked)
	}
	if err := b.Restart(t.Context(), api.RestartRequest{Server: true, Replica: "nobody"}); fail.KindOf(err) != fail.Usage {
		t.Errorf("of nobody: %v", err)
	}
	// In place, the primary's restarts, here or where it is, and a checkpoint follows.
	in := api.RestartRequest{Server: true, InPlace: true, Drain: time.Second, Cut: true}
	if err := b.Restart(t.Context(), in); err != nil || len(b.agent.restarts) != 1 || b.agent.restarts[0] != (agent.RestartOptions{Drain: time.Second, Cut: true}) || b.server.checkpoints != 1 {
		t.Errorf("in place: %v, %+v, %d checkpoints", err, b.agent.restarts, b.server.checkpoints)
	}
	b.calls["restart-primary"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
		asked = append(asked, to)
		return struct{}{}, nil
	}
	in.Replica = "b"
	if err := b.Restart(t.Context(), in); err != nil || len(asked) != 2 || len(b.agent.restarts) != 1 {
		t.Errorf("in place on another: %v, %v", err, asked)
	}
	if in.Replica = "nobody"; fail.KindOf(b.Restart(t.Context(), in)) != fail.Usage {
		t.Error("in place of nobody")
	}
	b.agent.view.Local.Server, b.agent.view.Record.Epoch.Leader, b.agent.err = ag.ServerRecovery, "b", errors.New("this node is busy")
	if err := b.RestartServer(t.Context()); fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "busy") {
		t.Errorf("of a busy node: %v", err)
	}
	if err := b.RestartPrimary(t.Context(), in); fail.KindOf(err) != fail.Refused {
		t.Errorf("in place of a secondary: %v", err)
	}
	b.Server = nil
	if err := b.RestartServer(t.Context()); fail.KindOf(err) != fail.Refused {
		t.Errorf("of a witness: %v", err)
	}
}

// TestSilentMembersPlainly holds that a member which does not answer is told in plain words.
func TestSilentMembersPlainly(t *testing.T) {
	t.Parallel()
	late := fmt.Errorf("call restart-server on b: dial b:5022: %w", context.DeadlineExceeded)
	if got := rpc.Plainly(late).Error(); got != "it does not answer" {
		t.Error(got)
	}
	if other := errors.New("the disk is full"); !errors.Is(rpc.Plainly(other), other) {
		t.Error("another error is not told as it is")
	}
	b := newBed(t)
	b.calls["restart-server"] = func(context.Context, ag.ReplicaID, any) (any, error) { return nil, late }
	if err := b.restartServerOf(t.Context(), "b"); fail.KindOf(err) != fail.Unhealthy || strings.Contains(err.Error(), "deadline") {
		t.Error(err)
	}
}
