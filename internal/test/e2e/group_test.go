package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// patience is how long a state may take that takes seconds on an idle machine, and minutes where forty processes
// compete for its two processors.
const patience = 5 * time.Minute

// group is a lab with a writer.
type group struct {
	*lab.Lab
	ledger *ledger.Ledger
	end    context.CancelFunc // of the writer
	ended  chan error
}

// mkdir makes a directory that every user may enter, whatever the umask.
func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// long skips a test that is not quick.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("longer than the quick proof allows; make test-long runs it (COTERIE_LONG=1)")
	}
}

// newGroup forms a group with a writer, which the end of the test takes down.
func newGroup(t *testing.T, o lab.Options) *group {
	t.Helper()
	g := raise(t, o)
	var err error
	if g.ledger, err = ledger.Open(filepath.Join(filepath.Dir(g.Dir()), "ledger")); err != nil {
		t.Fatal(err)
	}
	if err := g.ledger.Prepare(t.Context(), g.ReadWrite()); err != nil {
		t.Fatal(err)
	}
	g.write(t)
	return g
}

// raise makes a lab without a writer, which the end of the test takes down.
func raise(t *testing.T, o lab.Options) *group {
	t.Helper()
	if testing.Short() {
		t.Skip("runs real servers")
	}
	g := &group{end: func() {}, ended: make(chan error)}
	close(g.ended)
	began := time.Now()
	for g.Lab == nil {
		dir, err := os.MkdirTemp(root, "g")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		o.Dir, o.Exe, o.Timeout = filepath.Join(dir, "lab"), exe, patience
		if o.Net != lab.NetNamespaces {
			o.Port = freePorts(t)
		}
		if g.Lab, err = lab.Up(t.Context(), o); err == nil {
			break
		}
		g.Lab = nil
		reap(dir)
		if !strings.Contains(err.Error(), "a host that is not as busy") || time.Since(began) > patience {
			t.Fatal(err)
		}
		t.Logf("again, when this host may be less busy: %v", err) // it is right to refuse, and nothing that the test is about
	}
	t.Logf("up after %v", time.Since(began).Round(time.Millisecond))
	g.runs(t, server(t).Version)
	t.Cleanup(func() { g.destroy(t) })
	return g
}

// server is the installation that nodes use by default.
func server(t *testing.T) programs.Install {
	t.Helper()
	found, err := programs.Find(t.Context())
	if err != nil || len(found) == 0 {
		t.Fatalf("no server: %v", err)
	}
	return found[0]
}

// runs checks that the group's servers are of the version that the test expects.
func (g *group) runs(t *testing.T, version string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var got string
	if err := conn.QueryRow(t.Context(), "SHOW server_version").Scan(&got); err != nil {
		t.Fatal(err)
	}
	if got, _, _ = strings.Cut(got, " "); got != version {
		t.Fatalf("the servers are %s; want %s", got, version)
	}
}

// destroy ends a group whose test failed, having shown the logs of its nodes. After down it does nothing.
func (g *group) destroy(t *testing.T) {
	g.end()
	if err := <-g.ended; err != nil {
		t.Logf("writer: %v", err)
	}
	if g.ledger != nil {
		_ = g.ledger.Close()
	}
	if _, err := os.Stat(g.Dir()); err == nil {
		if t.Failed() {
			g.showLogs(t)
		}
		if err := g.Down(context.Background()); err != nil {
			t.Errorf("down: %v", err)
		}
	}
	reap(filepath.Dir(g.Dir()))
}

func (g *group) showLogs(t *testing.T) {
	t.Helper()
	for _, n := range g.Nodes() {
		for _, f := range []string{"agent.out", "agent.log", "keeper.log", "postgres.log"} {
			lines := strings.Split(strings.TrimSpace(g.log(n.Name, f)), "\n")
			t.Logf("%s %s:\n%s", n.Name, f, strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	}
}

// down takes the group down and fails if anything of it stays behind.
func (g *group) down(t *testing.T) {
	t.Helper()
	if g.ledger != nil {
		g.judge(t)
	}
	dir, traces := g.Dir(), []string{g.Dir()}
	for _, n := range g.Nodes() {
		l, err := config.NewLayout(n.Dir)
		if err != nil {
			t.Fatal(err)
		}
		traces = append(traces, l.Run)
	}
	if err := g.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := processesOf(dir); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
	for _, d := range traces {
		if _, err := os.Stat(d); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("left behind: %s", d)
		}
	}
}

// freePorts finds a range of ports for a lab.
func freePorts(t *testing.T) int {
	t.Helper()
	return ports.Range(t, 60)
}

// write starts the writer: two clients through the listeners of all nodes.
func (g *group) write(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- g.ledger.Write(ctx, ledger.WriterOptions{DSN: g.ReadWrite(), Clients: 2, Every: 10 * time.Millisecond})
		close(ended)
	}()
	g.end, g.ended = cancel, ended
	g.acknowledged(t, 20)
}

// acknowledged waits for n more acknowledgements of the writer.
func (g *group) acknowledged(t *testing.T, n int64) {
	t.Helper()
	want := g.ledger.Progress().Acknowledged + n
	g.await(t, fmt.Sprintf("%d more acknowledged", n), func(lab.Status) bool { return g.ledger.Progress().Acknowledged >= want })
}

// judge stops the writer and compares its ledger with the primary's rows, one by one.
func (g *group) judge(t *testing.T) {
	t.Helper()
	g.end()
	if err := <-g.ended; err != nil {
		t.Errorf("writer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v, err := g.ledger.Verify(ctx, g.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	if t.Log(v); !v.Sound() || v.Acknowledged == 0 {
		t.Errorf("the group did not keep its promises: %v %v", v, v.LostIDs)
	}
}

// judgeAndGoOn judges and starts the writer again, between two faults.
func (g *group) judgeAndGoOn(t *testing.T) {
	t.Helper()
	g.judge(t)
	g.write(t)
}

// await waits until the status satisfies is.
func (g *group) await(t *testing.T, what string, is func(lab.Status) bool) lab.Status {
	t.Helper()
	return g.awaitFor(t, patience, what, is)
}

func (g *group) awaitFor(t *testing.T, limit time.Duration, what string, is func(lab.Status) bool) lab.Status {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		s, err := g.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if is(s) {
			return s
		}
		if time.Now().After(deadline) {
			b, _ := json.MarshalIndent(s, "", " ")
			t.Fatalf("%s: not so after %v: %s", what, limit, b)
		}
	}
}

// ready waits until the group is whole again.
func (g *group) ready(t *testing.T) lab.Status {
	t.Helper()
	return g.await(t, "every replica SYNCHRONIZED", lab.Status.Ready)
}

// newPrimary waits for a primary other than old, in a later epoch.
func (g *group) newPrimary(t *testing.T, old lab.Status) lab.Status {
	t.Helper()
	s := g.nextEpoch(t, old)
	if *s.Primary == *old.Primary {
		t.Errorf("%s, which died, is the primary again in epoch %d", *s.Primary, s.Epoch)
	}
	return s
}

// nextEpoch waits for any primary in a later epoch: a node whose server alone died has the longest log and may be back
// in time to be chosen for it.
func (g *group) nextEpoch(t *testing.T, old lab.Status) lab.Status {
	t.Helper()
	return g.await(t, "a primary in a later epoch", func(s lab.Status) bool { return s.Primary != nil && s.Epoch > old.Epoch })
}

// secondaries are the names of the secondaries.
func secondaries(s lab.Status) []string {
	var out []string
	for _, r := range s.Replicas {
		if s.Primary == nil || r.Name != *s.Primary {
			out = append(out, r.Name)
		}
	}
	return out
}

// node returns the directory of a node.
func (g *group) node(name string) string { return filepath.Join(g.Dir(), name) }

// log reads a log of a node.
func (g *group) log(node, file string) string {
	b, _ := os.ReadFile(filepath.Join(g.node(node), "log", file))
	return string(b)
}

// forks lists the diverged tails that a node keeps.
func (g *group) forks(node string) []string {
	m, _ := filepath.Glob(filepath.Join(g.node(node), "forked", "*", "summary.json"))
	return m
}

// status asks one node's agent.
func (g *group) status(t *testing.T, node string) (api.Status, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return g.agent(t, node).Status(ctx)
}

// decisions returns those that a node remembers.
func (g *group) decisions(t *testing.T, node string) []api.Decision {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, err := g.agent(t, node).Decisions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (g *group) agent(t *testing.T, node string) *api.Client {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	return api.NewClient(l.AgentSock(), l.Owner())
}

// member is what a node reports of a member.
func member(s api.Status, name string) api.Replica {
	i := slices.IndexFunc(s.Replicas, func(r api.Replica) bool { return r.Name == ag.ReplicaID(name) })
	if i < 0 {
		return api.Replica{}
	}
	return s.Replicas[i]
}

// pid returns the process of a kind on a node.
func pid(t *testing.T, s lab.Status, node, what string) int {
	t.Helper()
	r, _ := s.Replica(node)
	p := map[string]*int{lab.WhatAgent: r.PIDs.Agent, lab.WhatKeeper: r.PIDs.Keeper, lab.WhatPostgres: r.PIDs.Postgres}[what]
	if p == nil {
		t.Fatalf("%s has no %s", node, what)
	}
	return *p
}

func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatalf("signal %v to %d: %v", sig, pid, err)
	}
}

// answer is the exit code and the output of a command.
type answer struct {
	code     int
	out, err string
}

// coterie runs a command.
func coterie(t *testing.T, args ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Dir = "/"
	cmd.WaitDelay = 5 * time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("coterie %q: %v %v: %s", args, err, ctx.Err(), said.String())
	}
	return answer{cmd.ProcessState.ExitCode(), out.String(), said.String()}
}

// must runs a command that must succeed.
func must(t *testing.T, args ...string) answer {
	t.Helper()
	a := coterie(t, args...)
	if a.code != 0 {
		t.Fatalf("coterie %q: exit code %d: %s", args, a.code, a.err)
	}
	return a
}

// failover moves the leadership to a replica as an operator would: a replica that has just come back may need a second
// attempt.
func (g *group) failover(t *testing.T, to string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(500 * time.Millisecond) {
		a := coterie(t, "failover", "--to", to, "--node", g.node(to))
		if a.code == 0 {
			return
		}
		if !strings.Contains(a.err, "is not ready") || time.Now().After(deadline) {
			t.Fatalf("failover to %s: exit code %d: %s", to, a.code, a.err)
		}
		t.Logf("again: %s", a.err)
	}
}

// sql runs a statement and returns its values.
func sql(t *testing.T, uri, statement string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, uri)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	rows, err := c.Query(ctx, statement)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[any])
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return strings.Trim(fmt.Sprint(values), "[]")
}
