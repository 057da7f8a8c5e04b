package patroni

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestConfigurations(t *testing.T) {
	l, err := newLayout("/d", "/pg/bin")
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.patroni(l.nodes[1])
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Name      string
		Bootstrap struct {
			DCS struct {
				TTL  int  `json:"ttl"`
				Sync bool `json:"synchronous_mode"`
			}
		}
	}
	if err := json.Unmarshal(b, &c); err != nil || c.Name != "p2" || c.Bootstrap.DCS.TTL != 30 || !c.Bootstrap.DCS.Sync {
		t.Errorf("%+v %v", c, err)
	}
	h := string(l.haproxy())
	for _, want := range []string{"inter 3s fall 3 rise 2", "inter 1s fall 1 rise 1", "OPTIONS /primary"} {
		if !strings.Contains(h, want) {
			t.Errorf("haproxy.cfg has no %q:\n%s", want, h)
		}
	}
	if strings.Contains(h, l.password) || slices.ContainsFunc(l.etcd(l.nodes[0]), func(a string) bool { return strings.Contains(a, l.password) }) {
		t.Error("a secret where it does not belong")
	}
}

func TestPorts(t *testing.T) {
	ports, err := freePorts(14)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(ports)
	if len(slices.Compact(ports)) != 14 {
		t.Errorf("twice the same: %v", ports)
	}
}

// Everything that a killed program started dies with it.
func TestKill(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 60 & sh -c 'sleep 61 & sleep 62' & wait")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []int
	for end := time.Now().Add(10 * time.Second); len(all) < 5 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		all, _ = descendants([]int{cmd.Process.Pid})
	}
	if err := kill(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if left, err := descendants(all); err != nil || len(all) < 5 || len(left) > 0 {
		t.Errorf("of %v are left %v, %v", all, left, err)
	}
}

// The processes that a killed benchmark left are found by their working directory.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("sleep", "60")
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
}

func TestPostmaster(t *testing.T) {
	n := &node{dir: t.TempDir()}
	if n.postmaster() != 0 {
		t.Error("a server without a file")
	}
	if err := os.Mkdir(filepath.Join(n.dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "data", "postmaster.pid"), []byte("1\n/x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := n.postmaster(); got != 0 {
		t.Errorf("took process %d of somebody else for the server", got)
	}
}
