package linkem

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/linkem/probe"
)

func own(lab string) int {
	n, err := Start(Options{Lab: lab, Nodes: []string{"n1", "n2"}})
	fmt.Println("started:", err)
	if err != nil {
		return 1
	}
	if err := n.Serve(stdio{os.Stdin, os.Stdout}); err != nil { // until the test has ended
		fmt.Fprintln(os.Stderr, err)
	}
	if err := n.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type stdio struct {
	io.Reader
	io.Writer
}

func TestKilledOwnerLeavesNothing(t *testing.T) {
	needRoot(t)
	lab := labName("k")
	owner, _ := startOwner(t, lab)
	if err := Sweep(lab); !errors.Is(err, ErrRunning) {
		t.Errorf("sweep under a living owner: %v", err)
	}
	if _, err := Start(Options{Lab: lab}); !errors.Is(err, ErrRunning) {
		t.Errorf("a second network of one lab: %v", err)
	}
	if got := len(remains(lab)); got != 3 {
		t.Errorf("the owner has %d names, want two namespaces and a device: %v", got, remains(lab))
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait()
	if err := Sweep(lab); err != nil {
		t.Fatal(err)
	}
	if left := remains(lab); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := Sweep(lab); err != nil {
		t.Errorf("sweep of nothing: %v", err)
	}

	owner, _ = startOwner(t, lab) // and without Sweep, the next start does it
	_ = owner.Process.Kill()
	_ = owner.Wait()
	n, err := Start(Options{Lab: lab, Nodes: []string{"n1"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(remains(lab)); got != 2 {
		t.Errorf("%d names, want a namespace and a device: %v", got, remains(lab))
	}
	if err := errors.Join(n.Close(), n.Close()); err != nil {
		t.Error(err)
	}
}

// TestRemote shapes the links of another process, which cleans up when its pipe ends.
func TestRemote(t *testing.T) {
	needRoot(t)
	lab := labName("r")
	owner, pipe := startOwner(t, lab)
	r, err := Connect(pipe)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Set("n1", "n2", Shape{Delay: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ping := func() time.Duration {
		p, err := probe.Ping(func(f func() error) error { return r.Do("n1", f) }, r.Addr("n2"), probe.Echoes{Count: 5, Interval: 10 * time.Millisecond, Wait: time.Second})
		if err != nil || len(p.RoundTrips) == 0 {
			t.Fatalf("%+v, %v", p, err)
		}
		return slices.Min(p.RoundTrips)
	}
	soon := func(most time.Duration) time.Duration { // a busy machine delays packets; it cannot do so for ever
		got := ping()
		for deadline := time.Now().Add(20 * time.Second); got > most && time.Now().Before(deadline); {
			got = ping()
		}
		return got
	}
	if got := soon(25 * time.Millisecond); got < 19*time.Millisecond || got > 25*time.Millisecond {
		t.Errorf("round trip %v, want 20 ms", got)
	}
	if err := r.Heal(); err != nil {
		t.Error(err)
	}
	if got := soon(5 * time.Millisecond); got > 5*time.Millisecond {
		t.Errorf("healed: round trip %v", got)
	}
	if err := r.Set("n1", "n9", Shape{}); err == nil || !strings.Contains(err.Error(), "n9") {
		t.Errorf("no such node: %v", err)
	}
	if err := r.Add("n3"); err != nil || !r.Addr("n3").IsValid() {
		t.Errorf("add: %v, %v", err, r.Addr("n3"))
	}
	if s, err := r.Stats(); err != nil || len(s) != 12 {
		t.Errorf("counters of %d directions, %v; want 12", len(s), err)
	}
	if _, err := r.Overruns("n3"); err != nil {
		t.Error(err)
	}
	_ = pipe.Writer.(io.Closer).Close() //nolint:forcetypeassert // a pipe
	if err := owner.Wait(); err != nil {
		t.Errorf("the owner at the end of its pipe: %v", err)
	}
	if left := remains(lab); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func startOwner(t *testing.T, lab string) (*exec.Cmd, stdio) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), ownerEnv+"="+lab)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = Sweep(lab)
	})
	r := bufio.NewReader(stdout)
	line, err := r.ReadString('\n')
	if err != nil || line != "started: <nil>\n" {
		t.Fatalf("owner: %q, %v", line, err)
	}
	return c, stdio{r, stdin}
}

// TestNamespacesKept: a network that comes back finds its namespaces, with what runs and listens in them, at the same
// addresses.
func TestNamespacesKept(t *testing.T) {
	needRoot(t)
	lab := labName("p")
	o := Options{Lab: lab, Nodes: []string{"n1", "n2"}, KeepNamespaces: true}
	n, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(); _ = Sweep(lab) })
	var s net.Listener
	if err := n.Do("n1", func() (err error) {
		s, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", n.Addr("n1").String()+":7")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(remains(lab)); got != 2 {
		t.Errorf("%d names after the end, want two namespaces: %v", got, remains(lab))
	}
	o.Subnet = n.Subnet()
	if err := Guard(lab, o.Subnet); err != nil || Guard(lab, o.Subnet) != nil {
		t.Fatal(err)
	}
	if n, err = Start(o); err != nil {
		t.Fatal(err)
	}
	if err := n.Do("n2", func() error {
		c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp", n.Addr("n1").String()+":7")
		if err == nil {
			_ = c.Close()
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if _, err := Start(Options{Lab: labName("q"), Subnet: o.Subnet}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a subnet that another lab has: %v", err)
	}
	if err := errors.Join(n.Close(), Sweep(lab)); err != nil {
		t.Fatal(err)
	}
	if left := remains(lab); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
