package clitest

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Agent is a fake of the agent of a node directory, served by the server of package api. It remembers all requests.
type Agent struct {
	Layout config.Layout // of a new node directory, without a configuration

	mu      sync.Mutex // guards the rest
	status  []api.Status
	answers map[string]func(request any) (any, error)
	tables  []table
	asked   []Request
}

// Request is one request to an Agent, other than for its status.
type Request struct {
	Method string // of api.Node, such as Failover
	In     any
}

// table is the answer to statements that contain a text.
type table struct {
	contains string
	result   console.Result
	err      *console.Error
	late     bool // it is answered when the client has gone
}

// NewNode makes a node directory without a configuration and without an agent, which is removed when the test ends.
func NewNode(t *testing.T) config.Layout {
	t.Helper()
	l, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(l.Run); err != nil {
			t.Error(err)
		}
	})
	if err := l.Make(); err != nil {
		t.Fatal(err)
	}
	return l
}

// NewStopped makes a node directory that has a configuration and no agent, and returns its path.
func NewStopped(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, config.File), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// NewAgent serves a fake agent in a new node directory until the test ends.
func NewAgent(t *testing.T) *Agent {
	t.Helper()
	l := NewNode(t)
	a := &Agent{Layout: l, answers: map[string]func(any) (any, error){}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- api.NewServer(node{a}, slog.New(slog.DiscardHandler)).ServeAdmin(ctx, l.AgentSock()) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	started, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := retry.Until(started, time.Millisecond, func() (bool, error) {
		_, err := api.NewClient(l.AgentSock(), os.Getuid()).Decisions(started)
		return err == nil, nil
	})
	if err != nil {
		t.Fatal("the fake agent does not answer: ", err)
	}
	return a
}

// SetStatus makes the agent report these statuses, one for each question, and the last one from then on.
func (a *Agent) SetStatus(all ...api.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = all
}

// Unreported returns how many of the statuses of SetStatus come after the one that the agent reports next.
func (a *Agent) Unreported() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, len(a.status)-1)
}

// On sets the answer to a method of api.Node. A method without an answer fails.
func (a *Agent) On(method string, answer func(request any) (any, error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[method] = answer
}

// OnSQL makes statements that contain the text return rows with these columns. Later calls come first. A statement that
// matches no text fails.
func (a *Agent) OnSQL(contains string, columns []string, rows ...[]any) {
	r := console.Result{Tag: "SELECT", Rows: rows}
	for _, c := range columns {
		r.Columns = append(r.Columns, console.Column{Name: c, Type: console.Text})
	}
	a.answer(table{contains: contains, result: r})
}

// OnStatement makes statements that contain the text succeed with a tag and without rows.
func (a *Agent) OnStatement(contains, tag string) {
	a.answer(table{contains: contains, result: console.Result{Tag: tag}})
}

// RefuseSQL makes statements that contain the text fail.
func (a *Agent) RefuseSQL(contains string, with console.Error) {
	a.answer(table{contains: contains, err: &with})
}

// DelaySQL leaves statements that contain the text without an answer for as long as their client waits.
func (a *Agent) DelaySQL(contains string) {
	a.answer(table{contains: contains, late: true})
}

func (a *Agent) answer(t table) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tables = append([]table{t}, a.tables...)
}

// Asked returns the requests for a method so far.
func (a *Agent) Asked(method string) (in []any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.asked {
		if r.Method == method {
			in = append(in, r.In)
		}
	}
	return in
}

// reply answers a request with what On has set for it.
func reply[T any](a *Agent, method string, in any) (out T, err error) {
	a.mu.Lock()
	a.asked = append(a.asked, Request{method, in})
	f := a.answers[method]
	a.mu.Unlock()
	if f == nil {
		return out, fmt.Errorf("the fake agent has no answer to %s", method)
	}
	v, err := f(in)
	if err != nil {
		return out, err
	}
	out, _ = v.(T) // nil: a method without an answer
	return out, nil
}

// node is an Agent as the server sees it.
type node struct{ a *Agent }

func (n node) Status() api.Status {
	n.a.mu.Lock()
	defer n.a.mu.Unlock()
	switch len(n.a.status) {
	case 0:
		return api.Status{}
	case 1:
		return n.a.status[0]
	}
	s := n.a.status[0]
	n.a.status = n.a.status[1:]
	return s
}

func (n node) Decisions() []api.Decision { return nil }

func (n node) Lineage() api.Lineage { return api.Lineage{} }

func (n node) Metrics() http.Handler { return http.NotFoundHandler() }

func (n node) Explain() any {
	v, err := reply[any](n.a, "Explain", nil)
	if err != nil {
		return err.Error()
	}
	return v
}

func (n node) Failover(_ context.Context, r api.FailoverRequest) (api.FailoverResult, error) {
	return reply[api.FailoverResult](n.a, "Failover", r)
}

func (n node) Restart(_ context.Context, r api.RestartRequest) error {
	_, err := reply[any](n.a, "Restart", r)
	return err
}

func (n node) Programs(context.Context) ([]api.Program, error) {
	return reply[[]api.Program](n.a, "Programs", nil)
}

func (n node) RestartAgent(_ context.Context, r api.AgentRequest) error {
	_, err := reply[any](n.a, "RestartAgent", r)
	return err
}

func (n node) Major(_ context.Context, r api.MajorRequest) (api.MajorPlan, error) {
	return reply[api.MajorPlan](n.a, "Major", r)
}

func (n node) CreateToken(_ context.Context, r api.TokenRequest) (api.TokenResult, error) {
	return reply[api.TokenResult](n.a, "CreateToken", r)
}

func (n node) RotateAuthority(_ context.Context, r api.RotateRequest) (api.Rotation, error) {
	return reply[api.Rotation](n.a, "RotateAuthority", r)
}

func (n node) Remove(_ context.Context, id ag.ReplicaID) error {
	_, err := reply[any](n.a, "Remove", id)
	return err
}

func (n node) Replace(_ context.Context, r api.ReplaceRequest) (api.TokenResult, error) {
	return reply[api.TokenResult](n.a, "Replace", r)
}

func (n node) Leave(context.Context) error {
	_, err := reply[any](n.a, "Leave", nil)
	return err
}

func (n node) Resume(_ context.Context, id ag.ReplicaID) error {
	_, err := reply[any](n.a, "Resume", id)
	return err
}

func (n node) Trust(_ context.Context, id ag.ReplicaID) (string, error) {
	return reply[string](n.a, "Trust", id)
}

func (n node) Seed(_ context.Context, r api.SeedRequest) (any, error) {
	return reply[any](n.a, "Seed", r)
}

func (n node) CancelSeeding(_ context.Context, id ag.ReplicaID) (any, error) {
	return reply[any](n.a, "CancelSeeding", id)
}

func (n node) Seedings(_ context.Context, id ag.ReplicaID) (any, error) {
	return reply[any](n.a, "Seedings", id)
}

func (n node) BackupStep(_ context.Context, r backup.StepRequest) (backup.StepAnswer, error) {
	return reply[backup.StepAnswer](n.a, "BackupStep", r)
}

func (n node) BackupRun(_ context.Context, r api.BackupRunRequest) (backup.Run, error) {
	return reply[backup.Run](n.a, "BackupRun", r)
}

func (n node) BackupActivity(_ context.Context, on ag.ReplicaID) (backup.Activity, error) {
	return reply[backup.Activity](n.a, "BackupActivity", on)
}

func (n node) Link(_ context.Context, r api.LinkRequest) (api.Link, error) {
	return reply[api.Link](n.a, "Link", r)
}

func (n node) Set(_ context.Context, r api.SettingsRequest) error {
	_, err := reply[any](n.a, "Set", r)
	return err
}

func (n node) SQL(ctx context.Context, text string) (any, error) {
	n.a.mu.Lock()
	n.a.asked = append(n.a.asked, Request{"SQL", text})
	tables := n.a.tables
	n.a.mu.Unlock()
	for _, t := range tables {
		if !strings.Contains(text, t.contains) {
			continue
		}
		if t.late {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if t.err != nil {
			b, err := json.Marshal(t.err)
			return api.SQLAnswer{Error: b}, err
		}
		b, err := json.Marshal(t.result)
		return api.SQLAnswer{Result: b}, err
	}
	return nil, fmt.Errorf("the fake agent has no answer to %s", text)
}
