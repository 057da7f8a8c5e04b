package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// said collects the output of a running command.
type said struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// running is a command that still runs, in the network of a node.
type running struct {
	cmd   *exec.Cmd
	out   *said
	ended chan struct{} // closed then
}

// machines are hosts without Coterie: a lab's network, and nothing on it.
type machines struct {
	*lab.Lab
	t *testing.T
}

func (m machines) node(name string) lab.Node {
	m.t.Helper()
	for _, n := range m.Nodes() {
		if n.Name == name {
			return n
		}
	}
	m.t.Fatalf("there is no %s", name)
	return lab.Node{}
}

// start starts a command of the program on a machine.
func (m machines) start(on, stdin string, args ...string) *running {
	m.t.Helper()
	r := &running{cmd: exec.Command(exe, append([]string{"lab", "exec", on, "--dir", m.Dir(), "--", exe}, args...)...), out: &said{}, ended: make(chan struct{})}
	r.cmd.Dir, r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr, r.cmd.WaitDelay = "/", strings.NewReader(stdin), r.out, r.out, 5*time.Second
	if err := r.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.cmd.Wait() // its exit code is looked at
	}()
	m.t.Cleanup(func() { r.stop(m.t) })
	return r
}

// run runs a command to its end and returns its exit code and its output.
func (m machines) run(on, stdin string, args ...string) (int, string) {
	m.t.Helper()
	r := m.start(on, stdin, args...)
	select {
	case <-r.ended:
	case <-time.After(patience):
		m.t.Fatalf("%v does not end: %s", args, r.out)
	}
	return r.cmd.ProcessState.ExitCode(), r.out.String()
}

// stop ends a command as Ctrl-C and systemd do.
func (r *running) stop(t *testing.T) {
	t.Helper()
	_ = r.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Errorf("does not end: %s", r.out)
	}
}

// says waits until a command has printed a text, and returns all its output.
func (r *running) says(t *testing.T, text string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		out := r.out.String()
		if strings.Contains(out, text) {
			return out
		}
		select {
		case <-r.ended:
			t.Fatalf("ended (%v) and did not say %q: %s", r.cmd.ProcessState, text, out)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("did not say %q: %s", text, out)
		}
	}
}

// TestWizard makes a group of three machines with the wizard, and a second one of the same machines with the wizard's
// script: the configurations are the same. The preflight checks the machines first.
func TestWizard(t *testing.T) {
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: three machines on one need network namespaces, which only root may make")
	}
	dir, err := os.MkdirTemp(root, "w")
	if err != nil {
		t.Fatal(err)
	}
	scripts := filepath.Join(dir, "scripts") // the server's user writes there; a node's directory is under no such one
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(scripts, 0o755), os.Chmod(scripts, 0o777)); err != nil {
		t.Fatal(err)
	}
	l, err := lab.Up(t.Context(), lab.Options{Dir: filepath.Join(dir, "lab"), Exe: exe, Empty: true, Net: lab.NetNamespaces})
	if err != nil {
		t.Fatal(err)
	}
	m := machines{l, t}
	t.Cleanup(func() {
		if err := l.Down(context.Background()); err != nil {
			t.Error(err)
		}
		reap(dir)
	})
	script := filepath.Join(scripts, "group.sql")
	m.preflights(script)
	m.refusals()
	wizard := m.create()
	m.follow(wizard, script)
}

// answers are the input of the wizard, except that of the last page.
const answers = "Sales\n2\n20000\nno\nshop\nn2\n\nsync\nyes\nn3\nwit\nwitness\n\nSales-L\n1433\nautomatic\n"

// init are the arguments of coterie init for the first machine.
func (m machines) init(more ...string) []string {
	n := m.node("n1")
	host := n.Address()
	return append([]string{
		"init", "--profile", "wan", // a busy machine may refuse the shorter ones
		"--node", filepath.Join(m.Dir(), "first"), "--name", "n1", "--endpoint", host + ":5022", "--read-write", host + ":5432", "--read-only", host + ":5433", "--http", host + ":8008",
	}, more...)
}

// preflights checks the machines over good, slow and cut links, and lets the wizard write its script.
func (m machines) preflights(script string) {
	t := m.t
	first := filepath.Join(m.Dir(), "first")
	var answering []*running
	for _, n := range []string{"n2", "n3"} {
		a := m.start(n, "", "check", "--answer", "--node", filepath.Join(m.Dir(), n))
		a.says(t, "answering preflights on port 5022")
		answering = append(answering, a)
	}
	if _, err := m.Link(t.Context(), "n1", "n2", linkem.Shape{Delay: 40 * time.Millisecond}, false); err != nil {
		t.Fatal(err)
	}
	_, out := m.run("n1", "", "check", "--preflight", "n2", "n3", "--node", first)
	for _, want := range []string{
		"n2: is " + m.node("n2").Address(), "n2: port 5022 answers", "n2: port 5432 answers", "n3: port 8008 answers", "n2: round trip 8", "n3: round trip", "n3: PostgreSQL [",
		"n2: a flush takes", "n3: ", "are free for", "this host: a flush takes",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the preflight does not say %q:\n%s", want, out)
		}
	}
	for _, bad := range []string{"does not answer", "does not reach", "its clock differs", "sorts differently", "lost"} {
		if strings.Contains(strings.ReplaceAll(out, "nothing lost", ""), bad) {
			t.Errorf("the preflight says %q:\n%s", bad, out)
		}
	}
	code, out := m.run("n1", m.answersFor("script", script), m.init("--interactive")...)
	if code != 0 || !strings.Contains(out, "n2: port 5022 answers") || !strings.Contains(out, "wrote "+script) {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if _, err := m.Cut(t.Context(), "n1", "n3", false, false); err != nil {
		t.Fatal(err)
	}
	code, out = m.run("n1", "", "check", "--preflight", "n3", "nosuchhost", "--node", first)
	if code != exitUnhealthy || !strings.Contains(out, "n3: port 5022 does not answer") || !strings.Contains(out, "open it in the firewall between") || !strings.Contains(out, "nosuchhost: not checked: the name") {
		t.Errorf("a cut link: exit code %d:\n%s", code, out)
	}
	for _, a := range answering {
		a.stop(t)
	}
	if _, err := m.Heal(t.Context(), lab.AllEnds, lab.AllEnds, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(first, config.File)); err == nil {
		t.Error("the script was to be written, and a node was made")
	}
}

func (m machines) answersFor(last ...string) string { return answers + strings.Join(last, "\n") + "\n" }

// refusals are answers with which the wizard makes nothing.
func (m machines) refusals() {
	for name, c := range map[string]struct {
		stdin string
		code  int
		says  string
	}{
		"quit":             {m.answersFor("quit"), exitRefused, "nothing was made"},
		"answers that end": {"Sales\n2\n", exitError, "the answers ended before the questions"},
		"nonsense":         {strings.Repeat("\x00\xff'; DROP\n", 50), exitError, "the answers ended"},
		"a lot of it":      {strings.Repeat("x", 1<<20), exitError, ""},
	} {
		code, out := m.run("n1", c.stdin, m.init("--interactive")...)
		if code != c.code || !strings.Contains(out, c.says) || strings.Contains(out, "panic") {
			m.t.Errorf("%s: exit code %d: %.2000s", name, code, out)
		}
	}
	if _, err := os.Stat(filepath.Join(m.Dir(), "first", config.File)); err == nil {
		m.t.Error("a node was made")
	}
}

// create makes the group with the wizard and returns its configuration, having ended its nodes.
func (m machines) create() ag.Group {
	t := m.t
	w := m.start("n1", m.answersFor("create"), m.init("--interactive")...)
	out := w.says(t, "waiting for n2, wit to join")
	var joined []*running
	for line := range strings.Lines(out) {
		command := strings.Fields(line)
		if len(command) < 4 || command[0] != "coterie" || command[2] == "TOKEN" {
			continue // it is not one of the two to type
		}
		joined = append(joined, m.join(command[1:]))
	}
	if len(joined) != 2 {
		t.Fatalf("two commands were to be typed: %s", out)
	}
	w.says(t, "the group Sales is made")
	return m.end(append(joined, w)...)
}

// join runs the command of a machine that joins: n2's is the replica.
func (m machines) join(args []string) *running {
	on, rest := "n2", []string(nil)
	if args[0] == "witness" {
		on = "n3"
	}
	host := m.node(on).Address()
	rest = []string{"--node", filepath.Join(m.Dir(), "of_"+on), "--endpoint", host + ":5022", "--http", host + ":8008", "--read-write", "", "--read-only", ""}
	if on == "n2" {
		rest = append(rest[:6], "--read-write", host+":5432", "--read-only", host+":5433")
	}
	return m.start(on, "", append(args, rest...)...)
}

// end reads the configuration, ends the nodes and removes what they had.
func (m machines) end(nodes ...*running) ag.Group {
	t := m.t
	first := filepath.Join(m.Dir(), "first")
	m.sees(first, "SELECT count(*) FROM coterie.replicas WHERE voter", 3) // votes are given in pairs, a moment after the second has joined
	l, err := config.NewLayout(first)
	if err != nil {
		t.Fatal(err)
	}
	var g ag.Group
	b, err := os.ReadFile(filepath.Join(l.State(), "group.json"))
	if err == nil {
		err = json.Unmarshal(b, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		n.stop(t)
	}
	for _, d := range []string{"first", "of_n2", "of_n3"} {
		if err := os.RemoveAll(filepath.Join(m.Dir(), d)); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// follow runs the script line by line, and compares the result with what the wizard made.
func (m machines) follow(want ag.Group, script string) {
	t := m.t
	first := filepath.Join(m.Dir(), "first")
	nodes := []*running{m.start("n1", "", m.init("--no-group")...)}
	nodes[0].says(t, "coterie join")
	for _, x := range [][2]string{{"replica", "n2"}, {"witness", "wit"}} {
		a := must(t, "token", "create", "--role", x[0], "--node", first, "--json")
		var token struct{ Token string }
		if err := json.Unmarshal([]byte(a.out), &token); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, m.join([]string{map[string]string{"replica": "join", "witness": "witness"}[x[0]], token.Token, "--name", x[1]}))
		m.sees(first, "SELECT count(*) FROM coterie.replicas WHERE connected AND name = '"+x[1]+"'", 1)
	}
	must(t, "sql", "-f", script, "--node", first)
	got := m.end(nodes...)
	own := cmp.Options{
		cmpopts.IgnoreFields(ag.Group{}, "ID", "SystemID"), cmpopts.IgnoreFields(ag.Replica{}, "KeyPin", "EtcdID"), cmpopts.EquateEmpty(),
		cmpopts.SortSlices(func(a, b ag.Replica) bool { return a.ID < b.ID }),
	}
	if diff := cmp.Diff(want, got, own, everyField); diff != "" {
		t.Errorf("the wizard and its script make different groups (-wizard +script):\n%s", diff)
	}
	if len(got.Replicas) != 3 || got.Name != "Sales" || got.Draft || len(got.Options.Databases) != 1 || len(got.Options.Listeners) != 1 {
		t.Errorf("made was %+v", got)
	}
}

// sees waits until a query returns the number.
func (m machines) sees(first, query string, want int) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		a := coterie(m.t, "sql", "--node", first, "--csv", "-c", query)
		if a.code == 0 && strings.HasSuffix(strings.TrimSpace(a.out), "\n"+strconv.Itoa(want)) {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s: not %d but %s%s", query, want, a.out, a.err)
		}
	}
}
