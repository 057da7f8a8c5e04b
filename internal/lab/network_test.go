package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

func needNamespaces(t *testing.T) {
	t.Helper()
	if err := canNamespaces(); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
}

// upNamespaced makes a lab with namespaces, and looks for what it leaves when the test ends.
func upNamespaced(t *testing.T, o Options) *Lab {
	t.Helper()
	needNamespaces(t)
	o.Net, o.Exe, o.Bound = NetNamespaces, program(t), true
	l := raise(t, func(began time.Time) Options {
		o.Dir = newDir(t)
		o.Progress = func(s string) { t.Logf("%v %s", time.Since(began).Round(time.Millisecond), s) }
		return o
	})
	t.Cleanup(func() { destroy(t, l); nothingLeft(t, l) })
	return l
}

// nothingLeft looks for namespaces, devices, routes and processes of a lab that was removed.
func nothingLeft(t *testing.T, l *Lab) {
	t.Helper()
	left, _ := filepath.Glob("/run/netns/cot-" + networkOf(l.dir) + "*")
	devices, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if d.Attrs().Name == "cot-"+networkOf(l.dir) {
			left = append(left, "device "+d.Attrs().Name)
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != nil && r.Dst.String() == l.d.Subnet.String() {
			left = append(left, "route "+r.String())
		}
	}
	ps, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ps {
		if slices.ContainsFunc(p.argv, func(a string) bool { return strings.Contains(a, l.dir) }) {
			left = append(left, fmt.Sprint("process ", p.pid, " ", p.argv))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), l.dir) || strings.Contains(string(mounts), networkOf(l.dir)) {
		left = append(left, fmt.Sprintf("mounts: %v %s", err, mounts))
	}
	if len(left) > 0 {
		t.Errorf("the lab left %s", strings.Join(left, "\n"))
	}
}

func (l *Lab) mustNode(t *testing.T, name string) Node {
	t.Helper()
	n, err := l.node(name)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// echo answers connections in the network of a node, until the test ends.
func echo(t *testing.T, l *Lab, node string) (addr string) {
	t.Helper()
	n := l.mustNode(t, node)
	addr = net.JoinHostPort(n.host, "7777")
	var s net.Listener
	if err := l.within(n, func() (err error) {
		s, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			running.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() })
		}
	})
	t.Cleanup(func() { _ = s.Close(); running.Wait() })
	return addr
}

// dial connects from a node, or from this host, and tells how long that took.
func dial(t *testing.T, l *Lab, node, addr string, patience time.Duration) (time.Duration, error) {
	t.Helper()
	n := Node{}
	if node != Client {
		n = l.mustNode(t, node)
	}
	var took time.Duration
	connect := func() error {
		began := time.Now()
		c, err := net.DialTimeout("tcp", addr, patience)
		took = time.Since(began)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	if node == Client {
		return took, connect()
	}
	err := l.within(n, connect)
	return took, err
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func statsOf(t *testing.T, l *Lab, from, to string) linkem.Stats {
	t.Helper()
	s, err := l.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range s.Links {
		if k.From == from && k.To == to {
			return k
		}
	}
	t.Fatalf("no link from %s to %s in %+v", from, to, s.Links)
	return linkem.Stats{}
}

// TestLinks changes the links of an empty lab, over which plain connections are made.
func TestLinks(t *testing.T) {
	l := upNamespaced(t, Options{Empty: true, Witness: true})
	n1, n2 := echo(t, l, "n1"), echo(t, l, "n2")
	for _, from := range []string{Client, "n2", "w"} {
		if took, err := dial(t, l, from, n1, 5*time.Second); err != nil {
			t.Errorf("from %s to n1: %v after %v", from, err, took)
		}
	}

	now, err := l.Link(t.Context(), "n1", "n2", linkem.Shape{Delay: 40 * time.Millisecond}, false)
	if err != nil || len(now) != 2 {
		t.Fatalf("link: %+v, %v", now, err)
	}
	if took, err := dial(t, l, "n1", n2, 5*time.Second); err != nil || took < 79*time.Millisecond {
		t.Errorf("a connection over a round trip of 80 ms took %v, %v", took, err)
	}
	if k := statsOf(t, l, "n1", "n2"); k.Shape.Delay != 40*time.Millisecond || k.Packets == 0 || k.Bytes == 0 {
		t.Errorf("the counters: %+v", k)
	}

	// One way, silently: the packets of n1 vanish, so that neither can connect to the other; those of n2 arrive.
	if now, err = l.Cut(t.Context(), "n1", "n2", false, true); err != nil || len(now) != 1 || !now[0].Shape.Cut || now[0].Shape.Delay == 0 {
		t.Fatalf("cut: %+v, %v", now, err)
	}
	before := statsOf(t, l, "n2", "n1")
	if took, err := dial(t, l, "n1", n2, 500*time.Millisecond); !timedOut(err) {
		t.Errorf("over a silent cut: %v after %v, want a time-out", err, took)
	}
	if _, err := dial(t, l, "n2", n1, 500*time.Millisecond); !timedOut(err) {
		t.Errorf("against a cut of the answers: %v, want a time-out", err)
	}
	if k := statsOf(t, l, "n1", "n2"); k.Blocked < 2 {
		t.Errorf("blocked: %+v", k)
	}
	if k := statsOf(t, l, "n2", "n1"); k.Blocked != 0 || k.Packets == before.Packets {
		t.Errorf("the other way is not cut: %+v", k)
	}
	if _, err := dial(t, l, Client, n2, 5*time.Second); err != nil {
		t.Errorf("the client is not cut off: %v", err)
	}

	// With reject: refused at once on the sending side, and only there.
	if _, err = l.Cut(t.Context(), "n1", "n2", true, true); err != nil {
		t.Fatal(err)
	}
	if took, err := dial(t, l, "n1", n2, 5*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("over a cut that rejects: %v after %v, want refused", err, took)
	}

	if now, err = l.Heal(t.Context(), AllEnds, AllEnds, true); err != nil || len(now) != 20 {
		t.Fatalf("heal cuts: %d directions, %v", len(now), err)
	}
	if k := statsOf(t, l, "n1", "n2"); k.Shape != (linkem.Shape{Delay: 40 * time.Millisecond}) {
		t.Errorf("a healed cut: %+v", k.Shape)
	}
	if _, err = l.Heal(t.Context(), "n1", "n2", false); err != nil {
		t.Fatal(err)
	}
	if k := statsOf(t, l, "n1", "n2"); k.Shape != (linkem.Shape{}) {
		t.Errorf("healed: %+v", k.Shape)
	}
	if _, err := dial(t, l, "n1", n2, 5*time.Second); err != nil {
		t.Errorf("healed: %v", err)
	}
}

func TestNamesOfLinks(t *testing.T) {
	l := &Lab{dir: "/l", d: description{Replicas: 3, Witness: true, Net: NetNamespaces}}
	for _, c := range []struct {
		a, b   string
		oneWay bool
		want   int
	}{
		{"n1", "n2", false, 2},
		{"n1", "n2", true, 1},
		{"n1", "nodes", false, 6},
		{"n1", "all", false, 8},
		{"*", "n1", true, 4},
		{"all", "all", false, 20},
		{"all", "all", true, 20},
		{"nodes", "nodes", false, 12},
		{"n1,n2", "client, w", false, 8},
		{"client", "nodes", true, 4},
	} {
		if got, err := l.between(c.a, c.b, c.oneWay); err != nil || len(got) != c.want {
			t.Errorf("%s to %s: %d directions, %v; want %d", c.a, c.b, len(got), err, c.want)
		}
	}
	for _, c := range [][2]string{{"n1", "n9"}, {"n1", "n1"}, {"", "n1"}, {"n1", "n2,,"}} {
		var refused fail.Error
		if _, err := l.between(c[0], c[1], false); !errors.As(err, &refused) || refused.Kind != fail.Usage {
			t.Errorf("%q to %q: %v, want a usage error", c[0], c[1], err)
		}
	}
}

// TestLoopbackHasNoLinks: a command that needs a network names it, and how to get one.
func TestLoopbackHasNoLinks(t *testing.T) {
	l, err := Up(t.Context(), Options{Dir: newDir(t), Port: freePort(t), Exe: "/bin/false", Empty: true})
	if err != nil {
		t.Fatal(err)
	}
	_, link := l.Link(t.Context(), "n1", "n2", linkem.Shape{}, false)
	_, cut := l.Cut(t.Context(), "n1", "n2", false, false)
	_, heal := l.Heal(t.Context(), "all", "all", false)
	for verb, err := range map[string]error{"link": link, "cut": cut, "heal": heal, "exec": l.Exec("n1", []string{"true"})} {
		if err == nil || !strings.Contains(err.Error(), "--net netns") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if _, err := Up(t.Context(), Options{Dir: l.Dir(), Net: NetNamespaces, Empty: true}); err == nil || !strings.Contains(err.Error(), NetLoopback) {
		t.Errorf("another network for a lab that is there: %v", err)
	}
	s, err := l.Status(t.Context())
	if err != nil || s.Net.Kind != NetLoopback || s.Links == nil || len(s.Links) != 0 {
		t.Errorf("status: %+v %v", s, err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Error(err)
	}
	for what, o := range map[string]Options{
		"port": {Net: NetNamespaces, Port: 7000}, "links": {Links: linkem.Shape{Loss: 0.5}}, "net": {Net: "bridge"},
		"loss": {Net: NetNamespaces, Links: linkem.Shape{Loss: 2}},
	} {
		o.Dir, o.Exe = newDir(t), "/bin/false"
		var wrong fail.Error
		if _, err := Up(t.Context(), o); !errors.As(err, &wrong) || wrong.Kind != fail.Usage {
			t.Errorf("%s: %v, want a usage error", what, err)
		}
	}
}

// TestWithoutRoot runs the program as the user of the servers.
func TestWithoutRoot(t *testing.T) {
	cmd := exec.Command(program(t), "lab", "up", "--net", "netns", "--dir", newDir(t))
	cmd.Dir = "/"
	if os.Getuid() == 0 {
		uid, gid, err := nodeUser()
		if err != nil {
			t.Skipf("NOT RUN: %v", err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "root") || !strings.Contains(string(out), "--net loopback") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNetworkKilled kills the network's process, and then all there is: the network comes back as it was, and down
// leaves nothing.
func TestNetworkKilled(t *testing.T) {
	l := upNamespaced(t, Options{Empty: true, Links: linkem.Shape{Delay: time.Millisecond}})
	n1 := echo(t, l, "n1")
	if _, err := l.Link(t.Context(), "n1", "n2", linkem.Shape{Delay: 50 * time.Millisecond}, false); err != nil {
		t.Fatal(err)
	}
	killNetwork(t, l)
	began := time.Now()
	s, err := l.Status(t.Context())
	if d := time.Since(began); err != nil || d > 10*time.Second || s.Net.PID != nil || s.Net.Finding != "" { // no node needs it
		t.Errorf("status without a network after %v: %+v, %v", d, s.Net, err)
	}
	if _, err := dial(t, l, Client, n1, time.Second); err == nil || timedOut(err) {
		t.Errorf("to a node without a network: %v, want unreachable, and nothing sent to the outside", err)
	}
	if _, err := Up(t.Context(), Options{Dir: l.dir, Exe: l.d.Exe, Empty: true}); err != nil {
		t.Fatal(err)
	}
	if k := statsOf(t, l, "n1", "n2"); k.Shape.Delay != 50*time.Millisecond {
		t.Errorf("the link came back as %+v", k.Shape)
	}
	if k := statsOf(t, l, "n2", "n3"); k.Shape.Delay != time.Millisecond {
		t.Errorf("another link came back as %+v", k.Shape)
	}
	if _, err := dial(t, l, Client, n1, 5*time.Second); err != nil { // a process that listened there still does
		t.Errorf("to n1 over the new network: %v", err)
	}

	stopped, _, err := l.networkProcess()
	if err != nil || stopped.signal(syscall.SIGSTOP) != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if s, err = l.Status(t.Context()); err != nil || time.Since(began) > 15*time.Second || !strings.Contains(s.Net.Finding, "kill -CONT") {
		t.Errorf("status with a stopped network after %v: %+v, %v", time.Since(began), s.Net, err)
	}
	_ = stopped.signal(syscall.SIGCONT)

	killNetwork(t, l)
	if _, err := l.Heal(t.Context(), AllEnds, AllEnds, false); err != nil {
		t.Fatal(err)
	}
	if k := statsOf(t, l, "n1", "n2"); k.Shape.Delay != time.Millisecond {
		t.Errorf("healed: %+v", k.Shape)
	}

	sleeper := exec.Command(l.d.Exe, "lab", "exec", "n3", "--dir", l.dir, "--", "sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleeper.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- sleeper.Wait() }()
	inside := func() bool {
		ids, err := linkem.Processes(l.namespace(l.mustNode(t, "n3")))
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(ids, sleeper.Process.Pid)
	}
	for deadline := time.Now().Add(30 * time.Second); !inside(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the command is not in the network of n3")
		}
	}
	killNetwork(t, l)
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the command ended by itself")
		}
	case <-time.After(10 * time.Second):
		t.Error("down left a process in a node's network")
	}
	nothingLeft(t, l)
}

func killNetwork(t *testing.T, l *Lab) {
	t.Helper()
	p, ok, err := l.networkProcess()
	if err != nil || !ok {
		t.Fatalf("no network process: %v", err)
	}
	if err := errors.Join(p.signal(syscall.SIGKILL), awaitGone([]process{p}, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) { // the system takes a moment to remove its device
		if _, err := netlink.LinkByName("cot-" + networkOf(l.dir)); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the network's device outlives its process")
		}
	}
}

// TestDirectoryRemoved: a lab that was removed by hand takes its network along.
func TestDirectoryRemoved(t *testing.T) {
	l := upNamespaced(t, Options{Empty: true, Replicas: 1})
	p, _, err := l.networkProcess()
	u, _, uerr := reaperOf(l.dir)
	if err := errors.Join(err, uerr, os.RemoveAll(l.dir)); err != nil {
		t.Fatal(err)
	}
	if err := awaitGone([]process{p, u}, 60*time.Second); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, l)
}

// TestExec runs the program as a user does.
func TestExec(t *testing.T) {
	l := upNamespaced(t, Options{Empty: true, Replicas: 2, Witness: true})
	run := func(in string, args ...string) (string, int) {
		cmd := exec.Command(l.d.Exe, append([]string{"lab", "exec", "--dir", l.dir}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := run("said\n", "n2", "--", "cat"); out != "said\n" || code != 0 {
		t.Errorf("cat: %d %q", code, out)
	}
	if _, code := run("", "w", "--", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	own := l.mustNode(t, "n2").host
	if out, code := run("", "n2", "--", "sh", "-c", "getent hosts n1 w client; cat /proc/net/fib_trie"); code != 0 || !strings.Contains(out, own) ||
		!strings.Contains(out, l.mustNode(t, "w").host+" ") || !strings.Contains(out, l.d.Subnet.Addr().Next().String()+" ") {
		t.Errorf("in n2: %d %s", code, out)
	}
	if out, code := run("", Client, "--", "cat", "/proc/net/dev"); code != 0 || !strings.Contains(out, "cot-"+networkOf(l.dir)) {
		t.Errorf("in the client: %d %s", code, out)
	}
	for _, args := range [][]string{{"n9", "--", "true"}, {"n1"}, {}, {"n1", "--"}} {
		if out, code := run("", args...); code != 2 {
			t.Errorf("%v: exit code %d, want 2: %s", args, code, out)
		}
	}
	if out, code := run("", "n1", "--", l.d.Exe, "lab", "down", "--dir", l.dir); code != 2 || !strings.Contains(out, "outside") {
		t.Errorf("down from within: %d %s", code, out)
	}
	if out, code := run("", "n1", "--", "no-such-command"); code != 1 || !strings.Contains(out, "no-such-command") {
		t.Errorf("no such command: %d %s", code, out)
	}
}
