package observe

import (
	"context"
	"errors"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
)

// fakeLab is a group that consists of its agents' answers only.
type fakeLab struct {
	names  []string
	agents map[string]*fakeAgent
	dir    string
}

func (l *fakeLab) Nodes() []string                     { return l.names }
func (l *fakeLab) Dir(node string) string              { return l.dir + "/" + node }
func (l *fakeLab) ReadWrite() string                   { return "postgresql://rw" }
func (l *fakeLab) ReadOnly() string                    { return "postgresql://ro" }
func (l *fakeLab) DSN(node string) string              { return "host=/nowhere/" + node }
func (l *fakeLab) Pause(context.Context, string) error { return nil }

func (l *fakeLab) Resume(context.Context, string) error { return nil }

func (l *fakeLab) Kill(context.Context, string) error { return nil }

func (l *fakeLab) Leave()                              {}
func (l *fakeLab) Start(context.Context, string) error { return nil }
func (l *fakeLab) Down(context.Context, bool) error    { return nil }

func (l *fakeLab) Agent(node string) Agent {
	if a, ok := l.agents[node]; ok {
		return a
	}
	return &fakeAgent{err: api.ErrNoAgent}
}

type fakeAgent struct {
	status    api.Status
	decisions []api.Decision
	asked     int // for decisions
	err       error
}

func (a *fakeAgent) Status(context.Context) (api.Status, error) { return a.status, a.err }

func (a *fakeAgent) Decisions(context.Context) ([]api.Decision, error) {
	a.asked++
	return a.decisions, nil
}

func (a *fakeAgent) Failover(context.Context, api.FailoverRequest) (api.FailoverResult, error) {
	return api.FailoverResult{}, errors.New("not here")
}

// group is a status of n1 leading n2 and n3, both of which are counted.
func group() api.Status {
	return api.Status{
		Node: "n1", Primary: "n1", WriteOpen: true, Epoch: 4, Phase: ag.PhaseLead,
		SyncMembers: []ag.Member{{ID: "n2"}, {ID: "n3"}}, SyncCount: 1,
		Replicas: []api.Replica{
			{Name: "n3", Role: ag.RoleSecondary, Sync: ag.Synchronized},
			{Name: "n1", Role: ag.RolePrimary, Sync: ag.Synchronized},
			{Name: "n2", Role: ag.RoleSecondary, Sync: ag.Synchronized},
		},
	}
}
