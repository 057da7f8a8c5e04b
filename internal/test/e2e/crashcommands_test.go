package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab"
	faults "github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/test/crashpoints"
)

// rejoin removes a member and has it join again, whatever dies on the way: each command is run again as its message
// says.
func rejoin(t *testing.T, c *crash, was lab.Status) {
	x := secondaries(was)[1]
	args := joinFlags(t, c.node(x))
	c.remove(t, x)
	c.kill(t, x)
	for tried := 0; ; tried++ {
		rename(t, c.node(x), c.node(x)+".removed"+strconv.Itoa(len(leftovers(c.node(x)))))
		if c.join(t, x, args) {
			break
		}
		if tried > 5 {
			t.Fatalf("%s does not get in again", x)
		}
		c.remove(t, x) // it may have been listed before its command died
	}
	c.again(t, x)
}

// leftovers are the directories that earlier joins left.
func leftovers(dir string) []string {
	found, _ := filepath.Glob(dir + ".removed*")
	return found
}

// joinFlags are what a node was made with.
func joinFlags(t *testing.T, dir string) []string {
	t.Helper()
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		"--no-start", "--node", dir, "--name", cfg.Node, "--endpoint", cfg.Endpoint.Advertise,
		"--read-write", cfg.ReadWrite.Advertise, "--read-only", cfg.ReadOnly.Advertise, "--http", cfg.HTTP.Advertise,
	}
}

// remove takes a member out, as often as it takes.
func (c *crash) remove(t *testing.T, x string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		by := c.serving(t, x)
		a := coterie(t, "remove", x, "--yes", "--node", c.node(by))
		if a.code == 0 || strings.Contains(a.err, "has no member "+x) {
			return
		}
		t.Logf("remove: exit code %d: %s", a.code, strings.TrimSpace(a.err))
		if time.Now().After(end) {
			t.Fatalf("%s is not removed", x)
		}
	}
}

// serving waits until one of the other nodes leads, and starts those that have ended.
func (c *crash) serving(t *testing.T, but string) (primary string) {
	t.Helper()
	s := c.await(t, "a primary beside "+but, func(s lab.Status) bool {
		for _, n := range c.Nodes() {
			if r, _ := s.Replica(n.Name); n.Name != but && r.PIDs.Agent == nil {
				c.again(t, n.Name)
				return false
			}
		}
		return s.Primary != nil && *s.Primary != but
	})
	return *s.Primary
}

// join has a node admitted, and reports whether its directory is complete.
func (c *crash) join(t *testing.T, x string, args []string) bool {
	t.Helper()
	by := c.serving(t, x)
	made := coterie(t, "token", "create", "--json", "--node", c.node(by))
	var token api.TokenResult
	if err := json.Unmarshal([]byte(made.out), &token); err != nil {
		t.Logf("token: %s", made.err)
		mkdir(t, c.node(x)) // for the next attempt to put away
		return false
	}
	a := coterie(t, append([]string{"join", token.Token}, args...)...)
	if a.code == 0 {
		return true
	}
	t.Logf("join: exit code %d: %s", a.code, strings.TrimSpace(a.err))
	if _, err := os.Stat(c.node(x)); err != nil {
		mkdir(t, c.node(x))
	}
	return false
}

// voters checks that the quorum has the votes that the configuration wants, and no other.
func (c *crash) voters(t *testing.T, node string, n int) {
	t.Helper()
	q := c.quorum(t, node)
	c.await(t, strconv.Itoa(n)+" voters", func(lab.Status) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		r, err := q.MemberList(ctx)
		if err != nil {
			return false
		}
		voting := 0
		for _, m := range r.Members {
			if !m.IsLearner {
				voting++
			}
		}
		return voting == n && len(r.Members) == n
	})
}

// TestCrashPointsOfFounding ends coterie init, and the first agent, at each of their points.
func TestCrashPointsOfFounding(t *testing.T) {
	d := commandsArmable(t)
	for _, name := range selected(points("a group is founded")) {
		t.Run(name, func(t *testing.T) {
			n := newFirst(t)
			if name == "found.launched" || name == "found.bootstrapped" {
				must(t, n.args...)
				dies(t, d, name, "agent", "--node", n.dir)
				n.leads(t)
				return
			}
			dies(t, d, name, n.args...)
			if a := coterie(t, "agent", "--node", n.dir); a.code == 0 {
				t.Error("an agent runs on a node directory that was not finished")
			}
			if a := coterie(t, n.args...); a.code == 0 || !strings.Contains(a.err, "is not empty") {
				t.Errorf("the unfinished directory is used again: exit code %d: %s", a.code, a.err)
			}
			rename(t, n.dir, n.dir+".unfinished")
			must(t, n.args...)
			n.leads(t)
		})
	}
}

// TestCrashPointsOfAdoption ends coterie init --adopt at each of its points. coterie release then gives the cluster
// back as it was.
func TestCrashPointsOfAdoption(t *testing.T) {
	d := commandsArmable(t)
	for _, name := range selected(points("a cluster is adopted")) {
		t.Run(name, func(t *testing.T) {
			n := newFirst(t)
			cluster := newCluster(t, n.dir+".data")
			before := cluster.settings(t)
			args := append([]string{}, n.args...)
			args = append(args, "--adopt", cluster.data, "--yes", "--drop-standbys")
			dies(t, d, name, args...)
			a := coterie(t, "release", "--node", n.dir)
			if name == "adopt.rules" { // nothing is changed yet
				if !strings.Contains(a.err, "nothing was changed") {
					t.Errorf("release: exit code %d: %s", a.code, a.err)
				}
			} else if a.code != 0 {
				t.Fatalf("an adoption that was interrupted cannot be given back: exit code %d: %s", a.code, a.err)
			}
			if after := cluster.settings(t); after != before {
				t.Errorf("the cluster's settings are not what they were:\n%s\nwere\n%s", after, before)
			}
			cluster.holdsItsRow(t)
			rename(t, n.dir, n.dir+".unfinished")
			must(t, args...)
			n.leads(t)
		})
	}
}

// TestCrashPointsOfLeaving ends coterie leave at each of its points. It goes on when it is run again, and the data
// directory is then an ordinary one in its new place.
func TestCrashPointsOfLeaving(t *testing.T) {
	d := commandsArmable(t)
	for _, name := range selected(points("a member leaves with its data")) {
		t.Run(name, func(t *testing.T) {
			n := newFirst(t)
			must(t, n.args...)
			stop := n.leading(t)
			own(t, filepath.Dir(n.dir))
			args := []string{"leave", "--yes", "--node", n.dir, "--keep-data", n.dir + ".data"}
			diesAs(t, d, serverUser(t), name, args...) // the user that root would run it as
			agent := coterie(t, "agent", "--node", n.dir)
			if agent.code == 0 {
				t.Error("another agent runs on the directory of a node that leaves")
			}
			if name == "leave.recovered" || name == "leave.unmarked" {
				if !strings.Contains(agent.err, "coterie leave") {
					t.Errorf("the agent: %s", agent.err)
				}
			}
			if name != "leave.removed" {
				args = args[:4] // the record has the place of the data
			}
			must(t, args...)
			stop()
			c := &cluster{server(t).BinDir, n.dir + ".data"}
			for _, pattern := range []string{"standby.signal", "recovery.signal", "coterie*"} {
				if found, _ := filepath.Glob(filepath.Join(c.data, pattern)); len(found) > 0 {
					t.Errorf("left behind: %v", found)
				}
			}
			if out := c.single(t, "SELECT 40 + 2"); !strings.Contains(out, `"42"`) {
				t.Errorf("the data does not start: %s", out)
			}
		})
	}
}

// TestCrashPointsOfDestroying ends coterie destroy at each of its points. It goes on when it is run again, with nothing
// asked, and nothing of the node is left.
func TestCrashPointsOfDestroying(t *testing.T) {
	d := commandsArmable(t)
	for _, name := range selected(points("a node is destroyed")) {
		t.Run(name, func(t *testing.T) {
			n := newFirst(t)
			must(t, n.args...)
			stop := n.leading(t)
			own(t, filepath.Dir(n.dir))
			diesAs(t, d, serverUser(t), name, "destroy", "--yes", "--node", n.dir) // the user that root would run it as
			if a := coterie(t, "agent", "--node", n.dir); a.code == 0 {
				t.Error("an agent runs on the directory of a node that is destroyed")
			}
			if keys, _ := filepath.Glob(filepath.Join(n.dir, "pki", "*")); len(keys) > 0 {
				t.Errorf("keys are left: %v", keys)
			}
			must(t, "destroy", "--node", n.dir)
			stop()
			n.isGone(t)
		})
	}
}

// isGone checks that no process and no file of the node is left.
func (n *first) isGone(t *testing.T) {
	t.Helper()
	if _, err := os.Lstat(n.dir); err == nil {
		left, _ := filepath.Glob(filepath.Join(n.dir, "*", "*"))
		t.Errorf("left behind: %v", left)
	}
	if left := processesOf(n.dir); len(left) > 0 {
		t.Errorf("left running: %v", left)
	}
}

func points(scenario string) []string {
	for _, s := range crashpoints.Scenarios {
		if s.Name == scenario {
			return s.Points
		}
	}
	return nil
}

func commandsArmable(t *testing.T) faults.Directory {
	t.Helper()
	long(t)
	if testing.Short() || os.Getenv("COTERIE_CRASHPOINTS") == "" {
		t.Skip("make crashpoints runs it (COTERIE_CRASHPOINTS=all, or the beginning of a name)")
	}
	return armable(t)
}

// first is a node to be made by coterie init.
type first struct {
	dir  string
	args []string
}

func newFirst(t *testing.T) *first {
	t.Helper()
	parent, err := os.MkdirTemp(root, "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	n := &first{dir: filepath.Join(parent, "n1")}
	n.args = []string{"init", "--no-start", "--node", n.dir, "--name", "n1"}
	port := freePorts(t)
	for i, flag := range []string{"--endpoint", "--read-write", "--read-only", "--http"} {
		n.args = append(n.args, flag, net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)))
	}
	return n
}

// leads starts the agent, waits until it leads the group and accepts writes, and stops it.
func (n *first) leads(t *testing.T) {
	t.Helper()
	n.leading(t)()
}

// leading starts the agent and waits until it leads the group and accepts writes. stop stops it, if it runs.
func (n *first) leading(t *testing.T) (stop func()) {
	t.Helper()
	_, stop = n.runs(t, "agent", "--node", n.dir)
	return stop
}

// runs starts a command that becomes the agent, and waits until that leads the group and accepts writes. process is
// its number; stop stops it, if it runs.
func (n *first) runs(t *testing.T, args ...string) (process int, stop func()) {
	t.Helper()
	cmd := exec.Command(exe, args...)
	cmd.Dir = "/"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	n.accepts(t)
	return cmd.Process.Pid, stop
}

// accepts waits until the node leads the group and accepts writes.
func (n *first) accepts(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		l, err := config.NewLayout(n.dir) // where the sockets are depends on whose the directory is, which init may not have made yet
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		s, err := api.NewClient(l.AgentSock(), l.Owner()).Status(ctx)
		cancel()
		if err == nil && s.WriteOpen {
			return
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(n.dir, "log", "agent.log"))
			t.Fatalf("the node does not lead: %v\n%s", err, log)
		}
	}
}

// cluster is a stopped PostgreSQL cluster with one row.
type cluster struct {
	bin, data string
}

func newCluster(t *testing.T, data string) *cluster {
	t.Helper()
	c := &cluster{server(t).BinDir, data}
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if id := serverUser(t); id != nil {
		if err := os.Chown(data, int(id.Uid), int(id.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	c.run(t, "initdb", "--no-sync", "--auth=trust", "--data-checksums", "--username=postgres", "--pgdata="+data)
	c.single(t, "CREATE TABLE kept (n int)", "INSERT INTO kept VALUES (42)", "ALTER SYSTEM SET synchronous_standby_names = 'old'", "ALTER SYSTEM SET work_mem = '5MB'")
	return c
}

// serverUser is the user of the servers where this is root; else nil.
func serverUser(t *testing.T) *syscall.Credential {
	t.Helper()
	if os.Getuid() != 0 {
		return nil
	}
	u, err := user.Lookup(daemon.ServerUserName)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

func (c *cluster) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	return c.feed(t, "", program, args...)
}

func (c *cluster) feed(t *testing.T, input, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(c.bin, program), args...)
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(input)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: serverUser(t)}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, out)
	}
	return string(out)
}

// single runs statements without a server.
func (c *cluster) single(t *testing.T, statements ...string) string {
	t.Helper()
	return c.feed(t, strings.Join(statements, "\n")+"\n", "postgres", "--single", "-D", c.data, "postgres")
}

// settings are the lines of the cluster's configuration, in alphabetical order.
func (c *cluster) settings(t *testing.T) string {
	t.Helper()
	var all []string
	for _, name := range []string{"postgresql.auto.conf", "postgresql.conf", "pg_hba.conf"} {
		text, err := os.ReadFile(filepath.Join(c.data, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				all = append(all, line)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// holdsItsRow checks that the cluster starts as a primary and has its row.
func (c *cluster) holdsItsRow(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(c.data, "standby.signal")); err == nil {
		t.Error("the cluster starts as a standby")
		return
	}
	if out := c.single(t, "SELECT n FROM kept"); !strings.Contains(out, `"42"`) {
		t.Errorf("the row is not there: %s", out)
	}
}
