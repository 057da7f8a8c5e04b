package operations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// TestPrograms holds what is told of each member's program: of those that do not answer or do not know the question,
// too.
func TestPrograms(t *testing.T) {
	b := newBed(t)
	b.calls["program"] = func(_ context.Context, to ag.ReplicaID, _ any) (any, error) {
		switch to {
		case "b":
			return api.Program{Node: "somebody", Running: "0.1.0", Installed: "0.2.0"}, nil
		case "c":
			return nil, &endpoint.RemoteError{Code: endpoint.CodeUnknownMethod, Message: "no method"}
		}
		return nil, fmt.Errorf("dial: %w", context.DeadlineExceeded)
	}
	all, err := b.Programs(t.Context())
	if err != nil || len(all) != 4 {
		t.Fatal(all, err)
	}
	want := []api.Program{
		{Node: "a", Running: buildinfo.String(), Installed: "0.2.0"},
		{Node: "b", Running: "0.1.0", Installed: "0.2.0"},
		{Node: "c", Older: true, Problem: "its agent is of a version that does not say it"},
		{Node: "w", Silent: true, Problem: "it does not answer"},
	}
	for i := range want {
		if all[i] != want[i] {
			t.Errorf("%+v, want %+v", all[i], want[i])
		}
	}
	b.Installed = func(context.Context) (string, error) { return "", errors.New("there is no program") }
	if p := b.OwnProgram(t.Context()); p.Installed != "" || p.Problem != "there is no program" || p.Changed() {
		t.Errorf("%+v", p)
	}
}

// TestRestartOfAnAgent holds whose agent may be restarted by a request, and that another node's is asked for there.
func TestRestartOfAnAgent(t *testing.T) {
	b := newBed(t)
	if err := b.RestartAgent(t.Context(), api.AgentRequest{Node: "a"}); fail.KindOf(err) != fail.Refused || len(b.agent.restarts) != 0 || !strings.Contains(err.Error(), "a is the primary") {
		t.Errorf("of the primary: %v", err)
	}
	if err := b.RestartAgent(t.Context(), api.AgentRequest{Leads: true, Drain: time.Second, Cut: true}); err != nil || len(b.agent.restarts) != 1 || b.agent.restarts[0] != (agent.RestartOptions{Drain: time.Second, Cut: true}) {
		t.Errorf("of the primary, in place: %v, %+v", err, b.agent.restarts)
	}
	if err := b.RestartAgent(t.Context(), api.AgentRequest{Node: "nobody"}); fail.KindOf(err) != fail.Usage {
		t.Errorf("of nobody: %v", err)
	}
	var says error
	var asked []any
	b.calls["restart-agent"] = func(_ context.Context, to ag.ReplicaID, in any) (any, error) {
		asked = append(asked, string(to), in)
		return struct{}{}, says
	}
	for _, tt := range []struct {
		says error
		kind fail.Kind // "": no error
		text string
	}{
		{nil, "", ""},
		{fmt.Errorf("post: %w", io.EOF), "", ""}, // it ended before it has answered
		{&endpoint.RemoteError{Code: endpoint.CodeUnknownMethod, Message: "no method"}, fail.Refused, "on b run: coterie restart"},
		{context.DeadlineExceeded, fail.Unhealthy, "b does not answer"},
		{fail.Refusedf("it is busy"), fail.Refused, "it is busy"},
	} {
		says, asked = tt.says, nil
		req := api.AgentRequest{Node: "b", Drain: time.Second}
		err := b.RestartAgent(t.Context(), req)
		if (err == nil) != (tt.kind == "") || err != nil && (fail.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text)) || len(asked) != 2 || asked[0] != "b" || asked[1] != any(req) {
			t.Errorf("%v: %v, asked %v", tt.says, err, asked)
		}
	}
	// A secondary on which commits count goes only while another one streams.
	b.store.alter(func(x *etcd.Snapshot) {
		x.Record.Epoch.Leader, x.Record.State.Leader, x.Record.State.V = "b", "b", []ag.Member{{ID: "a"}, {ID: "c"}}
	})
	b.agent.view.Record.Epoch.Leader, b.agent.view.Local.Server = "b", ag.ServerRecovery
	b.agent.statuses = map[ag.ReplicaID]agent.Status{"c": {}}
	if err := b.RestartOwnAgent(t.Context(), api.AgentRequest{}); fail.KindOf(err) != fail.Unhealthy || !strings.Contains(err.Error(), "does not stream") || len(b.agent.restarts) != 1 {
		t.Errorf("of the last secondary: %v", err)
	}
}
