package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// tutorial is the page that TestThreeMachinesTutorial follows.
const tutorial = "../../../docs/tutorials/three-machines.md"

// step is one block of commands of the page, and the place at which they are typed.
type step struct{ at, text string }

func steps(t *testing.T, path string) (found []step) {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?ms)^```sh (\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		found = append(found, step{m[1], m[2]})
	}
	if marks := strings.Count(string(page), "\n```"); len(found)*2 != marks {
		t.Fatalf("%d of %d blocks of %s say where they are typed", len(found), marks/2, path)
	}
	return found
}

// TestPagesOfMachinesCanBeRead holds that a shell understands the pages, and that the long tests know their places.
func TestPagesOfMachinesCanBeRead(t *testing.T) {
	for path, want := range map[string]string{
		tutorial:    "packages each db1 db2 db3 db1 db1 client loop db1 db2 db1 client db1",
		installPage: "build deb rpm node tarball node node witness account node node apparmor node",
	} {
		var places []string
		for _, s := range steps(t, path) {
			places = append(places, s.at)
			cmd := exec.CommandContext(t.Context(), "sh", "-n")
			cmd.Stdin = strings.NewReader(s.text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: a block that the shell does not understand: %v\n%s\n%s", path, err, out, s.text)
			}
		}
		if got := strings.Join(places, " "); got != want {
			t.Errorf("%s is typed at %q, want %q", path, got, want)
		}
	}
}

// newcomer follows the tutorial.
type newcomer struct {
	t     *testing.T
	ms    site
	dir   string // of the client
	hosts string // a file that gives the machines their names
	known string // the client's variables
	token string // that the command before has printed
}

// TestThreeMachinesTutorial types the tutorial's commands on three machines that have PostgreSQL and nothing else, and
// on a client. The loop of the page runs from its place to the end.
func TestThreeMachinesTutorial(t *testing.T) {
	long(t)
	wire := bridge(t)
	n := &newcomer{t: t, dir: filepath.Join(root, "newcomer")}
	mkdir(t, n.dir)
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	for i := range 3 {
		n.ms = append(n.ms, bareMachine(t, wire, "db", i+1))
		fmt.Fprintf(&hosts, "%s %s\n", n.ms[i].addr, n.ms[i].name)
	}
	n.hosts = filepath.Join(n.dir, "hosts")
	if err := os.WriteFile(n.hosts, []byte(hosts.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, m := range n.ms {
		m.file("etc/hosts", hosts.String(), 0o644)
		run1(t, "install", "-D", exe, filepath.Join(m.root, "srv/coterie/bin/coterie"))
		run1(t, "install", "-D", "-m", "644", "../../../packaging/coterie.service", filepath.Join(m.root, "srv/coterie/packaging/coterie.service"))
		m.boot()
	}
	began, last := time.Now(), ""
	for _, s := range steps(t, tutorial) {
		if s.at == "packages" {
			continue // they are those of this machine
		}
		at := time.Now()
		last = n.do(s)
		t.Logf("%s at %s, for %.1f s:\n%s%s", at.Sub(began).Round(100*time.Millisecond), s.at, time.Since(at).Seconds(), s.text, last)
	}
	if at, _ := n.ms.whole(t, 0); at.name != "db1" {
		t.Errorf("%s leads at the end of the page", at.name)
	}
	counted := strings.Fields(n.client(`psql -XAtF ' ' "postgresql://app@db1,db2,db3/orders" -c "select count(*), max(id) + 1 from notes"`))
	if len(counted) != 2 || counted[0] != counted[1] || counted[0] < "1" {
		t.Errorf("the application has %q rows and numbers", counted)
	}
	t.Logf("the page took %v; the application wrote %s rows", time.Since(began).Round(time.Second), counted[0])
}

// do types a block, and returns the output.
func (n *newcomer) do(s step) string {
	n.t.Helper()
	text := strings.ReplaceAll(s.text, "TOKEN", n.token)
	for _, m := range regexp.MustCompile(`(?m)^#see within (\d+)s: (.*)$`).FindAllStringSubmatch(text, -1) {
		seconds, err := time.ParseDuration(m[1] + "s")
		if err != nil {
			n.t.Fatal(err)
		}
		n.see(m[2], seconds)
	}
	switch s.at {
	case "client":
		return n.client(text)
	case "loop":
		n.loop(text)
		return ""
	case "each":
		var out string
		for _, m := range n.ms {
			out += n.machine(m, text)
		}
		return out
	}
	for _, m := range n.ms {
		if m.name == s.at {
			return n.machine(m, text)
		}
	}
	n.t.Fatalf("there is no %s", s.at)
	return ""
}

// machine types a block on a machine. A password that is asked for is answered.
func (n *newcomer) machine(m *machine, text string) string {
	n.t.Helper()
	c := m.command("sh", "-ec", "cd /srv/coterie\n"+text)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // without a terminal a password is read from the input
	c.Stdin = strings.NewReader("not a secret\nnot a secret\n")
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		n.t.Fatalf("%s: %s\n%v\n%s%s", m.name, text, err, &out, &said)
	}
	if found := regexp.MustCompile(`(?m)^coterie join (\S+)`).FindStringSubmatch(out.String()); found != nil {
		n.token = found[1]
	}
	return out.String() + said.String()
}

// shell is the client's, where the names of the machines resolve.
func (n *newcomer) shell(ctx context.Context, text string) *exec.Cmd {
	text = strings.ReplaceAll(text, "PGPASSWORD=...", "PGPASSWORD='not a secret'")
	c := exec.CommandContext(ctx, "unshare", "--mount", "sh", "-ec", "mount --bind "+n.hosts+" /etc/hosts\n"+n.known+text)
	c.Dir, c.Env = n.dir, []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = time.Second
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "export ") {
			n.known += line
		}
	}
	return c
}

func (n *newcomer) client(text string) string {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	out, err := n.shell(ctx, text).CombinedOutput()
	if err != nil {
		n.t.Fatalf("client: %s\n%v\n%s", text, err, out)
	}
	return string(out)
}

// loop runs the page's application until the end of the test.
func (n *newcomer) loop(text string) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := n.shell(ctx, "set +e\n"+text)
	if err := c.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { cancel(); _ = c.Wait() })
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		rows := n.client(`psql -XAt "postgresql://app@db1,db2,db3/orders" -c "select count(*) > 5 from notes"`)
		if strings.TrimSpace(rows) == "t" {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatal("the application of the page writes nothing")
		}
	}
}

// see waits for the state that the page promises.
func (n *newcomer) see(what string, within time.Duration) {
	n.t.Helper()
	switch what {
	case "every replica is synchronized":
		began := time.Now()
		if n.ms.whole(n.t, 0); time.Since(began) > within {
			n.t.Errorf("%s after %v; the page says %v", what, time.Since(began), within)
		}
	case "another replica is the primary":
		for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
			if s, ok := n.ms.status(); ok && s.WriteOpen && s.Primary != "db1" {
				return
			}
			if time.Since(began) > within {
				n.t.Fatalf("not so after %v: %s", within, what)
			}
		}
	default:
		n.t.Fatalf("the page promises %q, which this test cannot look for", what)
	}
}
