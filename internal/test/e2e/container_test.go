package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// entrypoint is what an image of packaging/container starts.
const entrypoint = "../../../packaging/container/entrypoint"

// TestContainerRefusals holds that a container which does not fit ends with a text that says what to do, and without a
// node.
func TestContainerRefusals(t *testing.T) {
	script, err := os.ReadFile(entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(script, []byte("\n")); n >= 100 {
		t.Errorf("%d lines; a person has to read it before a first start", n)
	}
	here := newContainer(t, "n1", 0)
	token := filepath.Join(here.home, "token")
	here.put(t, token, "no token at all")
	node := "COTERIE_NODE=" + here.node()
	address := "COTERIE_ADDRESS=n1"
	for _, tt := range []struct {
		env  []string
		code int
		says string
	}{
		{[]string{"COTERIE_WITHOUT_VOLUME=no"}, 4, "no volume is mounted at " + here.volume},
		{[]string{"COTERIE_NODE=" + here.home + "/missing/node"}, 2, "there is no directory " + here.home + "/missing; mount a volume there"},
		{[]string{"COTERIE_NODE=/proc/sys/node"}, 4, "cannot write to /proc/sys; give the volume to that user"},
		{nil, 2, "there is no node in " + here.node() + " yet; set COTERIE_GROUP to make a group here, or COTERIE_JOIN_FILE"},
		{[]string{"COTERIE_JOIN=secret", "COTERIE_GROUP=orders"}, 2, "COTERIE_JOIN shows the token to everybody who can inspect the container"},
		{[]string{"COTERIE_GROUP=orders", "COTERIE_JOIN_FILE=" + token}, 2, "set one of them"},
		{[]string{"COTERIE_GROUP=orders", "COTERIE_KIND=witness"}, 2, "there is no node in"},
		{[]string{"COTERIE_GROUP=orders", "COTERIE_KIND=primary", address}, 2, "COTERIE_KIND is primary; choose replica or witness"},
		{[]string{"COTERIE_GROUP=orders"}, 2, "set COTERIE_ADDRESS to the host name"},
		{[]string{"COTERIE_JOIN_FILE=" + here.home + "/nothing", address}, 2, "cannot read " + here.home + "/nothing, the token of COTERIE_JOIN_FILE"},
		{[]string{"COTERIE_JOIN_FILE=" + token, address}, 2, "token"},
		{[]string{"COTERIE_JOIN_FILE=" + token, "COTERIE_KIND=witness", address}, 2, "token"},
	} {
		code, said := here.runs(t, append([]string{node, "COTERIE_WITHOUT_VOLUME=yes"}, tt.env...))
		if code != tt.code || !strings.Contains(said, tt.says) || strings.Contains(said, "secret") {
			t.Errorf("%q: %d, %s; want %d, %q", tt.env, code, said, tt.code, tt.says)
		}
		if _, err := os.Stat(here.node()); err == nil {
			t.Fatalf("%q made a node", tt.env)
		}
	}
	if err := os.Mkdir(here.node(), 0o755); err != nil {
		t.Fatal(err)
	}
	here.put(t, here.node()+"/coterie.yaml", "node: n1\nkind: replica\ngroup: 0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11\ngroup_name: billing\n")
	if code, said := here.runs(t, []string{node, "COTERIE_WITHOUT_VOLUME=yes", "COTERIE_GROUP=orders"}); code != 4 || !strings.Contains(said, "the volume has a node of group billing, and COTERIE_GROUP says orders") {
		t.Errorf("the volume of another group: %d, %s", code, said)
	}
	if err := os.Rename(here.node()+"/coterie.yaml", here.node()+"/coterie.yaml.left"); err != nil {
		t.Fatal(err)
	}
	if code, said := here.runs(t, []string{node, "COTERIE_WITHOUT_VOLUME=yes", "COTERIE_GROUP=orders"}); code != 4 || !strings.Contains(said, "has left its group") {
		t.Errorf("the volume of a node that has left: %d, %s", code, said)
	}
	if os.Geteuid() != 0 {
		t.Log("NOT RUN: a container of root, as this is no root")
		return
	}
	here.root = true
	if code, said := here.runs(t, []string{node, "COTERIE_GROUP=orders"}); code != 4 || !strings.Contains(said, "this is root, and PostgreSQL does not run as root") {
		t.Errorf("root: %d, %s", code, said)
	}
}

// TestContainerCommands holds that another command than a node's is run, told of signals, and ends with its own status.
func TestContainerCommands(t *testing.T) {
	here := newContainer(t, "n1", 0)
	if code, said := here.runs(t, nil, "coterie", "--version"); code != 0 || !strings.HasPrefix(said, "coterie version ") {
		t.Errorf("%d, %s", code, said)
	}
	if code, said := here.runs(t, nil, "sh", "-c", "echo out; exit 7"); code != 7 || said != "out\n" {
		t.Errorf("%d, %s", code, said)
	}
	if code, _ := here.runs(t, []string{"COTERIE_NODE=" + here.node()}, "health"); code == 0 {
		t.Error("no agent runs, and the container is healthy")
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := here.command(t, nil, "sh", "-c", "trap 'echo told; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var said []byte
		for b := make([]byte, 64); ; {
			n, err := out.Read(b)
			if said = append(said, b[:n]...); string(said) == "ready\n" && n > 0 {
				signal(t, cmd.Process.Pid, s)
			}
			if err != nil {
				break
			}
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 5 || string(said) != "ready\ntold\n" {
			t.Errorf("%v: %d, %q", s, code, said)
		}
	}
}

// TestContainerSignals holds that a stop which arrives while an agent restarts is not lost: the node gives the
// leadership away, and then its agent is told. coterie is a stand-in.
func TestContainerSignals(t *testing.T) {
	here := newContainer(t, "n1", 0)
	bin := filepath.Join(here.home, "bin")
	mkdir(t, bin)
	fake := "#!/bin/sh\necho \"$1\" >&2\ncase $1 in\nagent) trap 'exit 6' TERM; while :; do sleep 0.05; done ;;\nrestart) sleep 1 ;;\nesac\n"
	if err := os.WriteFile(filepath.Join(bin, "coterie"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(here.node(), 0o755); err != nil {
		t.Fatal(err)
	}
	here.put(t, here.node()+"/coterie.yaml", "group_name: orders\n")
	cmd := here.command(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "COTERIE_NODE=" + here.node(), "COTERIE_WITHOUT_VOLUME=yes"})
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	here.cmd, here.ended = cmd, make(chan struct{})
	at := map[string]syscall.Signal{"agent\n": syscall.SIGHUP, "agent\nrestart\n": syscall.SIGTERM}
	var said []byte
	for b := make([]byte, 64); ; {
		n, err := out.Read(b)
		said = append(said, b[:n]...)
		if s, ok := at[string(said)]; ok && n > 0 {
			delete(at, string(said))
			signal(t, cmd.Process.Pid, s)
		}
		if err != nil {
			break
		}
	}
	_ = cmd.Wait()
	close(here.ended)
	if code := cmd.ProcessState.ExitCode(); code != 6 || string(said) != "agent\nrestart\nfailover\n" {
		t.Errorf("%d, %q", code, said)
	}
}

// TestEndToEndContainers runs a group of two replicas and a witness by the entrypoint of the image: the first starts, a
// restart of the agent, a stop, which moves the leadership, a second start, and a container that is killed. As root
// each container has its own processes, and its volume is a mount.
func TestEndToEndContainers(t *testing.T) {
	long(t)
	if os.Geteuid() != 0 {
		t.Log("NOT RUN: namespaces, a mounted volume, and the kill of a whole container need root")
	}
	port := freePorts(t)
	n1, n2, w := newContainer(t, "n1", port), newContainer(t, "n2", port+10), newContainer(t, "w", port+20)
	n1.start(t, "COTERIE_GROUP=orders")
	n1.sql(t, "create table notes (t text)", "insert into notes values ('kept')")
	n2.put(t, n2.home+"/token", n1.token(t, "replica"))
	n2.start(t, "COTERIE_JOIN_FILE="+n2.home+"/token")
	w.put(t, w.home+"/token", n1.token(t, "witness"))
	w.start(t, "COTERIE_JOIN_FILE="+w.home+"/token", "COTERIE_KIND=witness")
	n1.waits(t, "every node is there", `test "$(coterie status --json | grep -c '"connected_state": "CONNECTED"')" = 3 && coterie status --json | grep -q '"automatic_failover": "ready'`)

	// SIGHUP replaces the agent; the container goes on.
	n1.signal(t, syscall.SIGHUP)
	n1.says(t, "the agent of n1 was restarted in")
	n1.waits(t, "n1 leads on", `coterie status --json | grep -q '"primary": "n1"' && coterie status`)

	// A stop in order gives the leadership away, and is no error.
	if code := n1.stop(t); code != 0 {
		t.Errorf("the stop of n1: %d\n%s", code, n1.said())
	}
	n2.waits(t, "n2 leads", `coterie status --json | grep -q '"primary": "n2"' && coterie status`)
	n1.start(t, "COTERIE_GROUP=orders") // as an engine starts it again, with what it was made with
	synchronized := `coterie status --json | grep -q '"automatic_failover": "ready'`
	n2.waits(t, "n1 is synchronized", synchronized)

	// The death of the whole container is an automatic failover, and its volume is enough for the next one.
	if os.Geteuid() == 0 {
		n2.kill(t)
		n1.waits(t, "n1 leads", `coterie status --json | grep -q '"primary": "n1"' && coterie status`)
		n2.start(t, "COTERIE_JOIN_FILE=/nothing")
		n1.waits(t, "n2 is synchronized", synchronized)
	}
	if got := n1.sql(t, "select t from notes"); got != "kept" && os.Geteuid() == 0 {
		t.Errorf("the row: %q", got)
	}
	for _, c := range []*container{w, n2, n1} {
		if code := c.stop(t); code != 0 {
			t.Errorf("the stop of %s: %d\n%s", c.name, code, c.said())
		}
	}
}

// container is a node as the image of packaging/container runs it.
type container struct {
	name         string
	home, volume string
	port         int
	root         bool // it runs as root
	cmd          *exec.Cmd
	ended        chan struct{}
}

func newContainer(t *testing.T, name string, port int) *container {
	t.Helper()
	home, err := os.MkdirTemp(root, "c")
	if err != nil {
		t.Fatal(err)
	}
	c := &container{name: name, home: home, volume: filepath.Join(home, "volume"), port: port}
	mkdir(t, c.volume)
	if os.Geteuid() == 0 {
		as := serverUser(t)
		for _, dir := range []string{c.home, c.volume} {
			if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.cmd != nil {
			_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
			<-c.ended
		}
		if t.Failed() && c.cmd != nil {
			t.Logf("%s said:\n%s", c.name, c.said())
		}
		reap(home)
	})
	return c
}

func (c *container) node() string { return filepath.Join(c.volume, "node") }

// put writes a file that the container's user owns.
func (c *container) put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		as := serverUser(t)
		if err := os.Chown(path, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
}

// env is the environment of a container.
func (c *container) env(more []string) []string {
	return append([]string{"PATH=" + filepath.Dir(exe) + ":" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C"}, more...)
}

// command returns the entrypoint as a process of the container's user.
func (c *container) command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := filepath.Abs(entrypoint)
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(c.home, "entrypoint") // the user may not reach the source
	if err := os.WriteFile(run, script, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(run, args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = "/", c.env(env), &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 && !c.root {
		cmd.SysProcAttr.Credential = serverUser(t)
	}
	return cmd
}

// runs runs the entrypoint to its end, without namespaces.
func (c *container) runs(t *testing.T, env []string, args ...string) (code int, said string) {
	t.Helper()
	cmd := c.command(t, env, args...)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// start starts the container, and waits until it is healthy.
func (c *container) start(t *testing.T, env ...string) {
	t.Helper()
	flags := fmt.Sprintf("COTERIE_FLAGS=--endpoint 127.0.0.1:%d --http 127.0.0.1:%d", c.port, c.port+3)
	if c.name != "w" {
		flags += fmt.Sprintf(" --read-write 127.0.0.1:%d --read-only 127.0.0.1:%d", c.port+1, c.port+2)
	}
	env = append([]string{"COTERIE_NODE=" + c.node(), "COTERIE_NAME=" + c.name, "COTERIE_ADDRESS=127.0.0.1", flags}, env...)
	if os.Geteuid() != 0 {
		env = append(env, "COTERIE_WITHOUT_VOLUME=yes")
	}
	c.cmd = c.command(t, env)
	if os.Geteuid() == 0 {
		as, inner := serverUser(t), c.cmd.Path
		c.cmd = exec.Command("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--", "sh", "-c",
			`mount --bind "$1" "$1" && mount -t tmpfs none /run && install -d -o "$2" -g "$3" /run/coterie && exec setpriv --reuid "$2" --regid "$3" --clear-groups -- "$4"`,
			"sh", c.volume, strconv.Itoa(int(as.Uid)), strconv.Itoa(int(as.Gid)), inner)
		c.cmd.Dir, c.cmd.Env, c.cmd.SysProcAttr = "/", c.env(env), &syscall.SysProcAttr{Setsid: true}
	}
	log, err := os.OpenFile(filepath.Join(c.home, "said"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := errors.Join(c.cmd.Start(), log.Close()); err != nil {
		t.Fatal(err)
	}
	c.ended = make(chan struct{})
	go func() {
		defer close(c.ended)
		_ = c.cmd.Wait()
	}()
	c.waits(t, c.name+" is healthy", c.home+"/entrypoint health")
	if c.name != "w" {
		c.waits(t, c.name+" is in the group", `coterie status`)
	}
}

// first returns the process that is the first one of the container.
func (c *container) first() int {
	if os.Geteuid() != 0 {
		return c.cmd.Process.Pid
	}
	return firstChild(c.cmd.Process.Pid)
}

// does runs a command in the container.
func (c *container) does(t *testing.T, text string) (said string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	words := []string{"sh", "-c", text}
	if os.Geteuid() == 0 {
		as := serverUser(t)
		words = append([]string{"nsenter", "--target", strconv.Itoa(c.first()), "--mount", "--pid", "--", "setpriv", "--reuid", strconv.Itoa(int(as.Uid)), "--regid", strconv.Itoa(int(as.Gid)), "--clear-groups", "--"}, words...)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir, cmd.Env = "/", c.env([]string{"COTERIE_NODE=" + c.node()})
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// waits waits until a command in the container succeeds.
func (c *container) waits(t *testing.T, what, text string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		said, err := c.does(t, text)
		if err == nil {
			return
		}
		select {
		case <-c.ended:
			t.Fatalf("%s: the container has ended: %s", what, c.said())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v: %s\n%s", what, err, said, c.said())
		}
	}
}

// sql runs statements on the node's server.
func (c *container) sql(t *testing.T, statements ...string) string {
	t.Helper()
	args := ""
	for _, s := range statements {
		args += fmt.Sprintf(" -c %q", s)
	}
	said, err := c.does(t, `for d in /run/coterie/*/pg /tmp/coterie-$(id -u)/*/pg; do psql -XAtq -U postgres -d postgres -h "$d"`+args+` 2>/dev/null && exit 0; done; exit 1`)
	if err != nil {
		t.Fatalf("%q: %v: %s", statements, err, said)
	}
	return said
}

// token returns a token that the node makes.
func (c *container) token(t *testing.T, role string) string {
	t.Helper()
	var said string
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		var err error
		if said, err = c.does(t, "coterie member add-token --role "+role+" 2>/dev/null"); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%v: %s", err, said)
		}
	}
	words := strings.Fields(said)
	return words[len(words)-1] + "\n"
}

func (c *container) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	signal(t, c.first(), s)
}

// stop ends the container as an engine does, and returns its status.
func (c *container) stop(t *testing.T) int {
	t.Helper()
	c.signal(t, syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(patience):
		t.Fatalf("%s does not stop: %s", c.name, c.said())
	}
	return c.cmd.ProcessState.ExitCode()
}

// kill ends every process of the container at once.
func (c *container) kill(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGKILL)
	<-c.ended
}

// says waits until the container has said a text.
func (c *container) says(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(c.said(), text); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not say %q: %s", c.name, text, c.said())
		}
	}
}

func (c *container) said() string { return read(filepath.Join(c.home, "said")) }
