package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/measure/ledger"
)

// machine is a system of its own: booted by systemd, on an overlay of this machine's files, with its own network,
// processes and users.
type machine struct {
	t                  *testing.T
	number             int
	name, addr, bridge string
	dir, root          string
	init               int           // the pid of its first process, as seen from here; 0: it is off
	off                chan struct{} // closed when it is
}

// bridge makes the network between machines. 198.18/15 is set aside for measurements (RFC 2544).
func bridge(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: booting machines needs root")
	}
	if _, err := exec.LookPath("systemd-nspawn"); err != nil {
		t.Skip("skipped: systemd-nspawn is not installed (Debian: apt install systemd-container)")
	}
	const name = "cotm0" // one name for all runs, so that one finds what another was killed over
	if ports, err := os.ReadDir("/sys/class/net/" + name + "/brif"); err == nil {
		if len(ports) > 0 {
			t.Skip("skipped: another run has its machines on " + name)
		}
		run1(t, "ip", "link", "del", name)
	}
	run1(t, "ip", "link", "add", name, "type", "bridge")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	run1(t, "ip", "addr", "add", "198.18.77.1/24", "dev", name)
	run1(t, "ip", "link", "set", name, "up")
	return name
}

// newMachine prepares a machine with the program and its unit installed. Its name is that of its kind and its number.
func newMachine(t *testing.T, bridge, kind string, n int) *machine {
	t.Helper()
	m := bareMachine(t, bridge, kind, n)
	run1(t, "install", "-D", exe, filepath.Join(m.root, "usr/local/bin/coterie"))
	run1(t, "install", "-m", "644", "../../../packaging/coterie.service", filepath.Join(m.root, units))
	return m
}

// units is the directory of a machine's own units.
const units = "etc/systemd/system/"

// bareMachine prepares a machine that has PostgreSQL and nothing of a node.
func bareMachine(t *testing.T, bridge, kind string, n int) *machine {
	t.Helper()
	m := &machine{t: t, number: n, name: fmt.Sprintf("%s%d", kind, n), addr: fmt.Sprintf("198.18.77.%d", 10+n), bridge: bridge}
	m.dir = filepath.Join(root, "machine-"+m.name)
	m.root = filepath.Join(m.dir, "root")
	for _, d := range []string{m.dir, m.root, filepath.Join(m.dir, "upper"), filepath.Join(m.dir, "work")} {
		mkdir(t, d)
	}
	if out, err := exec.Command("mount", "-t", "overlay", "overlay", "-o", fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", m.dir, m.dir), m.root).CombinedOutput(); err != nil {
		t.Skipf("skipped: no overlay of this machine's files can be mounted: %s", out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", "-l", m.root).Run() })
	for _, unit := range []string{"networkd", "resolved", "timesyncd", "udevd", "udev-trigger", "firstboot"} {
		m.link("/dev/null", units+"systemd-"+unit+".service")
	}
	for _, unit := range []string{"postgresql", "ssh", "cron"} {
		m.link("/dev/null", units+unit+".service")
	}
	m.file("etc/machine-id", "", 0o444)
	m.file("etc/fstab", "", 0o644)
	m.file("etc/hostname", m.name+"\n", 0o644)
	m.file(units+"wire.service", "[Unit]\nBefore=network.target network-online.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\n"+
		"ExecStart=/bin/sh -c 'ip link set lo up; ip addr add "+m.addr+"/24 dev host0; ip link set host0 up; ip route add default via 198.18.77.1'\n", 0o644)
	m.link("../wire.service", units+"multi-user.target.wants/wire.service")
	m.link("/lib/systemd/system/multi-user.target", units+"default.target")
	return m
}

func (m *machine) file(name, content string, mode os.FileMode) {
	m.t.Helper()
	name = filepath.Join(m.root, name)
	_ = os.Remove(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), mode)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) link(to, name string) {
	m.t.Helper()
	name = filepath.Join(m.root, name)
	_ = os.Remove(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.Symlink(to, name)); err != nil {
		m.t.Fatal(err)
	}
}

// boot turns the machine on and waits until its system is up.
func (m *machine) boot() {
	m.t.Helper()
	c := exec.Command("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--directory", m.root, "--boot",
		"--machine", fmt.Sprintf("%s-%d", m.bridge, m.number), "--hostname", m.name, "--network-veth", "--network-bridge", m.bridge)
	console, err := os.Create(filepath.Join(m.dir, "console"))
	if err != nil {
		m.t.Fatal(err)
	}
	c.Stdout, c.Stderr = console, console
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal to the tests' group must not part it from its machine: see reap
	if err := errors.Join(c.Start(), console.Close()); err != nil {
		m.t.Fatal(err)
	}
	m.off = make(chan struct{})
	go func(off chan struct{}) { _ = c.Wait(); close(off) }(m.off)
	m.t.Cleanup(m.cut)
	m.until("its system is up", func() bool {
		select {
		case <-m.off:
			m.fail("it went off")
		default:
		}
		if m.init = firstChild(c.Process.Pid); m.init == 0 {
			return false
		}
		out, _ := m.command("systemctl", "is-system-running").Output()
		return bytes.HasPrefix(out, []byte("running")) || bytes.HasPrefix(out, []byte("degraded"))
	})
}

func (m *machine) until(what string, is func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			m.fail(fmt.Sprintf("%s: not so after %v", what, patience))
		}
	}
}

// fail ends the test with the output of the machine.
func (m *machine) fail(why string) {
	m.t.Helper()
	console, _ := os.ReadFile(filepath.Join(m.dir, "console"))
	m.t.Fatalf("%s: %s\n%s", m.name, why, console)
}

// command runs a program on the machine, as its root.
func (m *machine) command(args ...string) *exec.Cmd {
	a := append([]string{"-t", strconv.Itoa(m.init), "-m", "-u", "-i", "-n", "-p", "-C", "env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, args...)
	return exec.Command("nsenter", a...)
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	c := m.command(args...)
	var out, said bytes.Buffer
	c.Stdout, c.Stderr = &out, &said
	if err := c.Run(); err != nil {
		m.t.Fatalf("%s: %v: %v\n%s%s", m.name, args, err, &out, &said)
	}
	return strings.TrimSpace(out.String())
}

// recorded waits until the journal has a record of the unit with a field, as NAME or NAME=VALUE, that has other fields.
func (m *machine) recorded(field string, others ...string) {
	m.t.Helper()
	name, _, _ := strings.Cut(field, "=")
	args := []string{"journalctl", "--unit", "coterie", "--output", "json", "--no-pager", "SYSLOG_IDENTIFIER=coterie"}
	if name != field {
		args = append(args, field)
	}
	m.until("the journal has "+field, func() bool {
		for line := range strings.Lines(m.run(args...)) {
			var record map[string]any
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				m.t.Fatalf("%v: %s", err, line)
			}
			if _, has := record[name]; !has {
				continue
			}
			for _, x := range others {
				if record[x] == nil {
					m.t.Fatalf("a record with %s has no %s: %s", field, x, line)
				}
			}
			return true
		}
		return false
	})
}

// unit returns a property of the service.
func (m *machine) unit(property string) string {
	m.t.Helper()
	return m.run("systemctl", "show", "coterie.service", "--value", "--property", property)
}

// processes lists the processes of the service. Copies of other services of this machine run too, some of them as the
// same user.
func (m *machine) processes() string {
	m.t.Helper()
	return m.run("sh", "-c", `for p in $(pgrep .); do grep -qs /coterie.service "/proc/$p/cgroup" && ps -o pid=,user=,args= -p "$p"; done; true`)
}

// cut cuts the machine's power. systemd-nspawn then takes its network away and ends.
func (m *machine) cut() {
	if m.init != 0 {
		_ = syscall.Kill(m.init, syscall.SIGKILL) // it may be off already
	}
	m.gone()
}

// gone waits until the machine is off.
func (m *machine) gone() {
	select {
	case <-m.off:
		m.init = 0
	case <-time.After(patience):
		m.t.Errorf("%s is still on after %v", m.name, patience)
	}
}

// site is the machines of a group, a node on each.
type site []*machine

// status returns the status of any machine that answers.
func (ms site) status() (api.Status, bool) {
	for _, m := range ms {
		var s api.Status
		if out, err := m.command("coterie", "status", "--json").Output(); err == nil && json.Unmarshal(out, &s) == nil && s.Primary != "" {
			return s, true
		}
	}
	return api.Status{}, false
}

// whole waits until a primary leads an epoch later than that and every replica is synchronized, and returns the
// primary.
func (ms site) whole(t *testing.T, after ag.Epoch) (*machine, ag.Epoch) {
	t.Helper()
	var at *machine
	var s api.Status
	ms[0].until("the group is whole", func() bool {
		var ok bool
		if s, ok = ms.status(); !ok || s.Epoch <= after || !s.WriteOpen || len(s.Replicas) != len(ms) {
			return false
		}
		for i, r := range s.Replicas {
			if r.Sync != ag.Synchronized {
				return false
			}
			if r.Name == s.Primary {
				at = ms[i]
			}
		}
		return at != nil
	})
	return at, s.Epoch
}

// form makes the group with the commands that an administrator types: one per machine, each printed by the one before.
func (ms site) form(t *testing.T) {
	t.Helper()
	command := "coterie init --group orders"
	for _, m := range ms {
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
			c := m.command(strings.Fields(command)...)
			var out, said bytes.Buffer
			c.Stdout, c.Stderr = &out, &said
			began := time.Now()
			err := c.Run()
			if err == nil {
				t.Logf("%s: up after %v", m.name, time.Since(began).Round(time.Millisecond))
				command = strings.TrimSpace(out.String())
				break
			}
			if !strings.Contains(said.String(), "a host that is not as busy") || time.Now().After(deadline) {
				t.Fatalf("%s: %v\n%s%s", m.name, err, &out, &said)
			}
			m.run("rm", "-rf", "/var/lib/coterie")
		}
		if !strings.HasPrefix(command, "coterie join ") {
			t.Fatalf("%s does not print the next machine's command: %q", m.name, command)
		}
	}
}

// login makes a user and returns how clients reach the group: by every address, the certificate verified.
func (ms site) login(t *testing.T) string {
	t.Helper()
	dir := ms[0].run("coterie", "config", "socket")
	ms[0].run("runuser", "-u", "postgres", "--", "psql", "-Xqh", dir, "-c", "create role app superuser login password 'not a secret'")
	ca := filepath.Join(root, "group.crt")
	if err := os.WriteFile(ca, []byte(ms[0].run("coterie", "ca")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, m := range ms {
		hosts = append(hosts, m.addr+":5432")
	}
	return "postgres://app:" + url.PathEscape("not a secret") + "@" + strings.Join(hosts, ",") + "/postgres?sslmode=verify-full&sslrootcert=" + url.QueryEscape(ca)
}

// TestThreeMachines forms a group on three machines that systemd runs, by one command each, and applies the faults of
// machines to it.
func TestThreeMachines(t *testing.T) {
	long(t)
	wire := bridge(t)
	var ms site
	for n := range 3 {
		m := newMachine(t, wire, "m", n+1)
		m.boot()
		ms = append(ms, m)
	}
	ms.form(t)
	at, epoch := ms.whole(t, 0)
	dsn := ms.login(t)
	written, err := ledger.Open(filepath.Join(root, "machines-ledger"))
	if err != nil {
		t.Fatal(err)
	}
	if err := written.Prepare(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() {
		ended <- written.Write(ctx, ledger.WriterOptions{DSN: dsn, Clients: 2, Every: 10 * time.Millisecond})
	}()

	fault := func(what string, do func()) {
		t.Helper()
		began := time.Now()
		do()
		at, epoch = ms.whole(t, epoch)
		t.Logf("%s: outage %v; whole again, led by %s, after %v", what, written.OutageBetween(began, time.Now()).Longest.Round(time.Millisecond), at.name,
			time.Since(began).Round(100*time.Millisecond))
	}
	at.recorded("COTERIE_EVENT=leadership", "COTERIE_GROUP")
	at.recorded("COTERIE_RULE", "COTERIE_BECAUSE", "COTERIE_NODE", "PRIORITY")
	agent := at.unit("MainPID")
	at.run("systemctl", "reload", "coterie")
	if now, _ := ms.whole(t, 0); now != at || at.unit("MainPID") != agent || at.unit("NRestarts") != "0" {
		t.Errorf("a reload moved the primary from %s to %s, or replaced its process", at.name, now.name)
	}
	fault("systemctl stop", func() {
		if at.processes() == "" {
			t.Fatal("the unit has no process, so that none is left of it would say nothing")
		}
		at.run("systemctl", "stop", "coterie")
		if r := at.unit("Result"); r != "success" {
			t.Errorf("the stop of the unit: %s", r)
		}
		if left := at.processes(); left != "" {
			t.Errorf("it left running: %s", left)
		}
		at.run("systemctl", "start", "coterie")
	})
	fault("kill -9 of the agent", func() { at.run("kill", "-9", at.unit("MainPID")) })
	fault("the power cut", func() { at.cut(); at.boot() })
	fault("systemctl poweroff", func() {
		_ = at.command("systemctl", "poweroff").Run() // may be ended by what it does
		at.gone()
		at.boot()
	})

	end()
	if err := <-ended; err != nil {
		t.Errorf("writer: %v", err)
	}
	v, err := written.Verify(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	if t.Log(v); !v.Sound() || v.Acknowledged == 0 {
		t.Errorf("the group did not keep its promises: %v %v", v, v.LostIDs)
	}
}
