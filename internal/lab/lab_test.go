package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/test/ports"
)

var programDir string // of the program, once it was built

// built builds the program where the user of the servers can execute it; COTERIE_TEST_EXE names an existing one.
var built = sync.OnceValues(func() (exe string, err error) {
	if exe := os.Getenv("COTERIE_TEST_EXE"); exe != "" {
		return exe, nil
	}
	if programDir, err = os.MkdirTemp("/tmp", "cotlabx"); err != nil {
		return "", err
	}
	if err := os.Chmod(programDir, 0o755); err != nil {
		return "", err
	}
	exe = filepath.Join(programDir, "coterie")
	build := exec.Command("go", "build", "-o", exe, "../../cmd/coterie")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is released: with C, the servers would inherit the agents' capabilities
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return exe, nil
})

func program(t *testing.T) string {
	t.Helper()
	exe, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		_ = os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// patience is how long a state may take that takes seconds on an idle machine.
const patience = 5 * time.Minute

// freePort finds a first port for a lab of four nodes.
func freePort(t *testing.T) int {
	t.Helper()
	return ports.Range(t, 50)
}

// newDir names a directory for a lab, which is not there yet.
func newDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp("/tmp", "cotlab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "lab")
}

// raise makes a lab. It tries again, with other options, while this host is too busy for a member of a group.
func raise(t *testing.T, options func(began time.Time) Options) *Lab {
	t.Helper()
	for first := time.Now(); ; {
		l, err := Up(t.Context(), options(time.Now()))
		if err == nil {
			return l
		}
		if !strings.Contains(err.Error(), "a host that is not as busy") || time.Since(first) > patience {
			t.Fatal(err)
		}
		t.Logf("again, when this host may be less busy: %v", err)
	}
}

// await waits until the status satisfies is.
func await(t *testing.T, l *Lab, what string, is func(Status) bool) Status {
	t.Helper()
	var s Status
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if s, err = l.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		if is(s) {
			return s
		}
		if time.Now().After(deadline) {
			b, _ := json.MarshalIndent(s, "", " ")
			_ = l.Logs(t.Context(), "", 15, false, func(line LogLine) { t.Log(line.Node, line.File, line.Line) })
			t.Fatalf("%s: not so after %v: %s", what, patience, b)
		}
	}
}

func query(t *testing.T, uri, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, uri)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	rows, err := c.Query(ctx, sql)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[any])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Trim(fmt.Sprint(values), "[]")
}

func TestLab(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three servers")
	}
	var said []time.Time
	l := raise(t, func(began time.Time) Options {
		said = nil
		return Options{Dir: newDir(t), Port: freePort(t), Exe: program(t), Bound: true, Progress: func(s string) {
			said = append(said, time.Now())
			t.Logf("%v %s", time.Since(began).Round(time.Millisecond), s)
		}}
	})
	t.Cleanup(func() { destroy(t, l) })
	for i := 1; i < len(said); i++ {
		if d := said[i].Sub(said[i-1]); d > 3*time.Second {
			t.Errorf("silent for %v", d)
		}
	}
	statusContract(t, l)
	query(t, l.ReadWrite(), "CREATE TABLE kept (id int)")
	query(t, l.ReadWrite(), "INSERT INTO kept VALUES (7) RETURNING id")
	if got := query(t, l.ReadOnly(), "SELECT pg_is_in_recovery()"); got != "true" {
		t.Errorf("the read-only listener gave a server with pg_is_in_recovery %s", got)
	}

	if err := l.Kill("n1", WhatNode); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	s, err := l.Status(t.Context())
	if d := time.Since(began); err != nil || d > 10*time.Second { // askTimeout where nothing else runs
		t.Errorf("status with a dead node took %v: %v", d, err)
	}
	if n1, _ := s.Replica("n1"); n1.Role != ag.RoleResolving || n1.Connected != disconnected || n1.PIDs != (PIDs{}) || n1.State != "down" {
		t.Errorf("the dead node: %+v", n1)
	}
	s = await(t, l, "another primary", func(s Status) bool { return s.Primary != nil })
	if *s.Primary == "n1" || s.Epoch < 2 {
		t.Errorf("the primary is %s in epoch %d", *s.Primary, s.Epoch)
	}
	if got := query(t, l.ReadWrite(), "SELECT id FROM kept"); got != "7" {
		t.Errorf("the new primary has %q", got)
	}

	if err := l.Start("n1"); err != nil {
		t.Fatal(err)
	}
	await(t, l, "n1 back", Status.Ready)
	if got := query(t, l.DSN("n1"), "SELECT id FROM kept"); got != "7" { // its listener leads to the primary
		t.Errorf("through n1: %q", got)
	}
	pauseAndResume(t, l, "n1")
	before, err := l.find(l.Nodes()[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Kill("n1", WhatPostgres); err != nil {
		t.Fatal(err)
	}
	await(t, l, "another server of n1", func(s Status) bool {
		n1, _ := s.Replica("n1")
		return s.Ready() && n1.PIDs.Postgres != nil && *n1.PIDs.Postgres != before.postgres.pid
	})
	down(t, l)
}

// statusContract holds the JSON to what programs were promised.
func statusContract(t *testing.T, l *Lab) {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !s.Ready() || s.Voters != 3 {
		t.Errorf("up returned before the group was ready: %+v", s)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	type uris struct {
		ReadWrite string `json:"read_write"`
		ReadOnly  string `json:"read_only"`
	}
	var doc struct {
		Listener uris
		Group    string
		Primary  string
		Epoch    int
		Replicas []struct {
			Name, Role, Dir, HTTP string
			Sync                  string `json:"synchronization_state"`
			Connected             string `json:"connected_state"`
			Listener              uris
			PIDs                  struct{ Agent, Keeper, Postgres int }
		}
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Replicas) != 3 || doc.Primary != "n1" || doc.Epoch != 1 || doc.Group != "lab" {
		t.Fatalf("status: %s", b)
	}
	var hosts []string
	for i, r := range doc.Replicas {
		role, port := "SECONDARY", l.d.Port+10*i
		if i == 0 {
			role = "PRIMARY"
		}
		hosts = append(hosts, "127.0.0.1:"+strconv.Itoa(port))
		if r.Name != fmt.Sprintf("n%d", i+1) || r.Role != role || r.Sync != "SYNCHRONIZED" || r.Connected != "CONNECTED" ||
			r.HTTP != fmt.Sprintf("http://127.0.0.1:%d", port+3) || r.Dir != filepath.Join(l.Dir(), r.Name) {
			t.Errorf("replica: %+v", r)
		}
		if !strings.Contains(r.Listener.ReadOnly, "@127.0.0.1:"+strconv.Itoa(port+1)+"/") || r.Listener.ReadWrite != l.DSN(r.Name) {
			t.Errorf("listener of %s: %+v", r.Name, r.Listener)
		}
		for kind, pid := range map[string]int{"agent": r.PIDs.Agent, "keeper": r.PIDs.Keeper, "postgres": r.PIDs.Postgres} {
			if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || !strings.Contains(string(line), kind) {
				t.Errorf("%s of %s is process %d: %q %v", kind, r.Name, pid, line, err)
			}
		}
	}
	if want := "@" + strings.Join(hosts, ",") + "/postgres"; !strings.Contains(doc.Listener.ReadWrite, want) {
		t.Errorf("%s does not list %s", doc.Listener.ReadWrite, want)
	}
}

func pauseAndResume(t *testing.T, l *Lab, name string) {
	t.Helper()
	if err := l.Pause(name, WhatPostgres); err != nil {
		t.Fatal(err)
	}
	if s, err := l.Status(t.Context()); err != nil {
		t.Error(err)
	} else if r, _ := s.Replica(name); r.State != "partly paused" || r.Connected == disconnected {
		t.Errorf("its server paused: %+v", r)
	}
	if err := l.Resume(name); err != nil {
		t.Fatal(err)
	}
	if err := l.Pause(name, "engine"); err == nil {
		t.Error("an engine was paused")
	}
	if err := l.Pause(name, WhatNode); err != nil {
		t.Fatal(err)
	}
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := s.Replica(name); r.State != "paused" || r.Connected != disconnected || r.Role != ag.RoleResolving || r.PIDs.Agent == nil {
		t.Errorf("paused: %+v", r)
	}
	if err := l.Start(name); err == nil {
		t.Error("a paused node was started")
	}
	if err := l.Resume(name); err != nil {
		t.Fatal(err)
	}
	await(t, l, name+" goes on", Status.Ready)
}

// down takes the lab down and looks for what it left.
func down(t *testing.T, l *Lab) {
	t.Helper()
	var runs []string
	for _, n := range l.Nodes() {
		layout, err := config.NewLayout(n.Dir)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, layout.Run)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(runs, l.Dir()) {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("down left %s: %v", dir, err)
		}
	}
	ps, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if slices.ContainsFunc(p.argv, func(a string) bool { return strings.Contains(a, l.Dir()) }) {
			t.Errorf("down left process %d: %q", p.pid, p.argv)
		}
	}
	if _, err := Open(l.Dir()); err == nil {
		t.Error("the lab is still there")
	}
}

// destroy ends a lab whose test failed.
func destroy(t *testing.T, l *Lab) {
	for _, n := range l.Nodes() {
		if tr, err := l.find(n); err == nil && tr.running() {
			if err := l.killNode(n); err != nil {
				t.Error(err)
			}
		}
		_ = removeRunDir(n)
	}
	if err := l.endNetwork(); err != nil {
		t.Error(err)
	}
	_ = os.RemoveAll(l.Dir())
	l.unbind()
}

func TestPortTaken(t *testing.T) {
	o := Options{Dir: newDir(t), Port: freePort(t), Exe: "/bin/false"}
	s, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", o.Port+12))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	_, err = Up(t.Context(), o)
	var refused fail.Error
	if !errors.As(err, &refused) || refused.Kind != fail.Refused || !strings.Contains(err.Error(), strconv.Itoa(o.Port+12)) {
		t.Errorf("a taken port: %v", err)
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refusal left %s", o.Dir)
	}
}

func TestUpFails(t *testing.T) {
	o := Options{Dir: newDir(t), Port: freePort(t), Exe: "/bin/false"}
	if _, err := Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), "coterie init of n1") {
		t.Errorf("a program that fails: %v", err)
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the failure left %s", o.Dir)
	}
}

func TestEmpty(t *testing.T) {
	l, err := Up(t.Context(), Options{Dir: newDir(t), Port: freePort(t), Exe: "/bin/false", Empty: true, Witness: true, Replicas: 2})
	if err != nil {
		t.Fatal(err)
	}
	lines := l.ByHand()
	if len(lines) != 5 || !strings.Contains(lines[0], " init ") || !strings.Contains(lines[4], "witness TOKEN") || !strings.Contains(lines[4], "--read-write '' ") {
		t.Errorf("by hand: %q", lines)
	}
	s, err := l.Status(t.Context())
	if err != nil || s.Primary != nil || len(s.Replicas) != 2 || len(s.Witnesses) != 1 || s.Replicas[0].State != "not made" {
		t.Errorf("status of an empty lab: %+v %v", s, err)
	}
	if _, err := Up(t.Context(), Options{Dir: l.Dir(), Empty: true}); err != nil {
		t.Errorf("up again: %v", err)
	}
	for verb, err := range map[string]error{"kill": l.Kill("n1", WhatNode), "pause": l.Pause("n1", WhatNode), "start": l.Start("n1"), "no such node": l.Kill("n9", "")} {
		if err == nil {
			t.Errorf("%s of a node that is not there succeeded", verb)
		}
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRecycled: a process that ended must not be mistaken for another with its number.
func TestRecycled(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	p, ok := readProcess(cmd.Process.Pid)
	if !ok {
		t.Fatal("not found")
	}
	other := p
	other.start = "1"
	if err := other.signal(9); err != nil || !p.alive() {
		t.Errorf("signalled a successor: %v", err)
	}
	if err := p.signal(9); err != nil {
		t.Error(err)
	}
	if err := awaitGone([]process{p}, 5*time.Second); err != nil {
		t.Error(err)
	}
}

func TestTreeOf(t *testing.T) {
	n := Node{Name: "n1", Dir: "/lab/n1"}
	ps := []process{
		{pid: 10, ppid: 1, argv: []string{"coterie", "agent", "--node", "/lab/n1"}},
		{pid: 11, ppid: 10, argv: []string{"coterie", "keeper", "--dir", "/lab/n1", "--run", "/r"}},
		{pid: 12, ppid: 11, comm: "postgres", argv: []string{"/pg/postgres", "-D", "/lab/n1/pgdata"}},
		{pid: 13, ppid: 12, comm: "postgres", argv: []string{"/pg/postgres", "-D", "/lab/n1/pgdata"}}, // a backend just forked
		{pid: 14, ppid: 12, comm: "postgres", argv: []string{"postgres: writer"}},
		{pid: 15, ppid: 1, comm: "postgres", argv: []string{"/pg/postgres", "-D", "/lab/n10/pgdata"}},
		{pid: 16, ppid: 1, argv: []string{"coterie", "status", "--node", "/lab/n1"}},
		{pid: 17, ppid: 1, argv: []string{"tail", "-f", "/lab/n1/log/agent.log"}},
		{pid: 18, ppid: 1, uid: 1 << 30, argv: []string{"coterie", "agent", "--node=/lab/n1"}}, // of another owner
	}
	for i := range ps {
		if ps[i].uid == 0 {
			ps[i].uid = os.Getuid()
		}
	}
	tr := treeOf(ps, n, os.Getuid())
	if tr.agent == nil || tr.agent.pid != 10 || tr.keeper == nil || tr.keeper.pid != 11 || tr.postgres == nil || tr.postgres.pid != 12 || len(tr.all) != 5 {
		t.Errorf("tree: %+v", tr)
	}
}
