package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// installPage is the page that TestInstallPage follows.
const installPage = "../../../docs/how-to/install.md"

// installer follows the page: a package on one machine, the tarball on another one.
type installer struct {
	t         *testing.T
	left      []step
	deb, tar  *machine
	witness   *machine // has no PostgreSQL, and not its user
	dist      string   // where the release is made
	installed string   // where it is on the machines
}

// next types the next block, which must be for that place, and returns its output.
func (x *installer) next(at string) string {
	x.t.Helper()
	if len(x.left) == 0 || x.left[0].at != at {
		x.t.Fatalf("the next block of the page is not for %s: %v", at, x.left)
	}
	text := strings.ReplaceAll(x.left[0].text, "amd64", runtime.GOARCH)
	x.left = x.left[1:]
	began := time.Now()
	var out string
	switch at {
	case "build":
		c := exec.CommandContext(x.t.Context(), "sh", "-ec", strings.ReplaceAll(text, "cd dist", "cd "+x.dist))
		c.Dir, c.Env = "../../..", append(os.Environ(), "ARGS=-arch "+runtime.GOARCH+" -dist "+x.dist)
		made, err := c.CombinedOutput()
		if err != nil {
			x.t.Fatalf("%s\n%v\n%s", text, err, made)
		}
		out = string(made)
	case "tarball":
		out = x.typed(x.tar, text)
	case "witness":
		out = x.typed(x.witness, text)
	default:
		out = x.typed(x.deb, text)
	}
	x.t.Logf("at %s, for %v:\n%s%s", at, time.Since(began).Round(100*time.Millisecond), text, out)
	return out
}

// typed types a text on a machine. Where a node is not made because the host is too busy, it is made again.
func (x *installer) typed(m *machine, text string) string {
	x.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		out, err := m.command("sh", "-ec", "export DEBIAN_FRONTEND=noninteractive\ncd "+x.installed+"\n"+text).CombinedOutput()
		if err == nil {
			return string(out)
		}
		if !strings.Contains(string(out), "a host that is not as busy") || time.Now().After(deadline) {
			x.t.Fatalf("%s: %s\n%v\n%s", m.name, text, err, out)
		}
		dir := "/var/lib/coterie"
		if strings.Contains(text, "--node "+dir+"-billing") {
			dir += "-billing"
		}
		m.run("rm", "-rf", dir)
	}
}

// running returns the process of a node's agent, its program, and its server's process.
func (x *installer) running(unit, dir string) (agent, program, server string) {
	x.t.Helper()
	agent = x.deb.run("systemctl", "show", "--value", "--property", "MainPID", unit)
	x.deb.until("the server of "+dir+" runs", func() bool {
		out, err := x.deb.command("sh", "-c", "head -n 1 "+dir+"/*/postmaster.pid").Output()
		server = strings.TrimSpace(string(out))
		return err == nil && server != ""
	})
	return agent, x.deb.run("readlink", "/proc/"+agent+"/exe"), server
}

// TestInstallPage types the commands of the page on machines that have PostgreSQL and nothing else, and holds what the
// page says of the packages: they start nothing, replace nothing that runs, and leave node directories.
func TestInstallPage(t *testing.T) {
	long(t)
	wire := bridge(t)
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip("NOT RUN: the page's package is installed by apt")
	}
	x := &installer{t: t, left: steps(t, installPage), dist: filepath.Join(root, "dist"), installed: "/root/dist"}
	x.next("build")
	for n, m := range map[int]**machine{1: &x.deb, 2: &x.tar, 3: &x.witness} {
		*m = bareMachine(t, wire, "i", n)
		run1(t, "cp", "-r", x.dist, filepath.Join((*m).root, x.installed))
		if *m == x.witness {
			(*m).forgetPostgres()
		}
		(*m).boot()
	}

	x.next("deb")
	files := x.deb.run("dpkg", "-L", "coterie")
	for _, has := range []string{"/usr/bin/coterie", "/man1/coterie-failover.1.gz", "bash-completion/completions/coterie", "/_coterie", "coterie.fish", "/coterie.service", "/coterie@.service"} {
		if !strings.Contains(files, has) {
			t.Errorf("the package has no %s:\n%s", has, files)
		}
	}
	if out, _ := x.deb.command("systemctl", "is-enabled", "coterie").Output(); strings.HasPrefix(string(out), "enabled") {
		t.Error("the package has enabled its unit")
	}
	if _, err := os.Stat(filepath.Join(x.deb.root, "var/lib/coterie")); err == nil || x.deb.processes() != "" {
		t.Error("the package has made or started a node")
	}
	x.left = x.left[1:] // the rpm, for which there is no machine
	if out := x.next("node"); !strings.HasPrefix(out, "coterie version 0.1.0-dev") {
		t.Errorf("coterie --version: %s", out)
	}
	x.next("tarball")
	form := x.left[0].text
	x.typed(x.tar, form)
	x.next("node")
	for _, m := range []*machine{x.deb, x.tar} {
		if got := m.run("systemctl", "is-active", "coterie"); got != "active" {
			t.Errorf("%s: coterie.service is %s", m.name, got)
		}
	}

	x.witnessed()
	x.next("node")
	x.next("node")
	const second = "/var/lib/coterie-billing"
	x.deb.until("the second node takes writes", func() bool { return x.deb.command("coterie", "status", "--node", second).Run() == nil })
	for _, c := range []string{"coterie status --node " + second, "COTERIE_NODE=" + second + " coterie status"} {
		if out := x.typed(x.deb, c); !strings.Contains(out, "billing") || strings.Contains(out, "orders") {
			t.Errorf("%s:\n%s", c, out)
		}
	}
	x.left = x.left[1:] // AppArmor, which is the kernel's: machines of this test share it with everybody
	x.replaced()

	x.typed(x.deb, "apt-get remove -y coterie")
	for _, unit := range []string{"coterie", "coterie@billing"} {
		if out, _ := x.deb.command("systemctl", "is-active", unit).Output(); strings.HasPrefix(string(out), "active") {
			t.Errorf("%s runs without its package", unit)
		}
	}
	x.deb.run("sh", "-c", "ls /var/lib/coterie/coterie.yaml "+second+"/coterie.yaml")
}

// forgetPostgres removes PostgreSQL and its user from a machine that is off.
func (m *machine) forgetPostgres() {
	m.t.Helper()
	run1(m.t, "rm", "-rf", filepath.Join(m.root, "usr/lib/postgresql"), filepath.Join(m.root, "usr/bin/pg_config"))
	for _, file := range []string{"passwd", "shadow", "group", "gshadow"} {
		run1(m.t, "sed", "-i", "/^postgres:/d", filepath.Join(m.root, "etc", file))
	}
}

// witnessed makes a witness on a machine without PostgreSQL: with the program alone it prints the command that makes
// the user; the package makes it.
func (x *installer) witnessed() {
	x.t.Helper()
	said := strings.Fields(x.next("node"))
	token := said[slices.Index(said, "witness")+1]
	base := "coterie_0.1.0-dev_linux_" + runtime.GOARCH
	out, err := x.witness.command("sh", "-c", "cd "+x.installed+" && tar -xzf "+base+".tar.gz && "+base+"/coterie witness "+token).CombinedOutput()
	makes := x.left[1].text
	if err == nil || !strings.Contains(string(out), "by: "+strings.TrimSpace(makes)+"; ") {
		x.t.Errorf("without the user: %v\n%s", err, out)
	}
	x.left[0].text = strings.ReplaceAll(x.left[0].text, "TOKEN", token)
	x.next("witness")
	x.left = x.left[1:] // the user is there; TestPostinstallMakesTheUser holds what it is like
	if got := x.witness.run("systemctl", "is-active", "coterie"); got != "active" {
		x.t.Errorf("the witness's unit is %s", got)
	}
	x.deb.until("the group has the witness", func() bool {
		out, err := x.deb.command("coterie", "status").Output()
		return err == nil && strings.Contains(string(out), x.witness.name)
	})
}

// replaced holds that a package replaces nothing that runs, and that the page's last block replaces the agent alone.
func (x *installer) replaced() {
	const unit, dir = "coterie", "/var/lib/coterie"
	x.t.Helper()
	agent, _, server := x.running(unit, dir)
	x.typed(x.deb, "apt-get install -y --reinstall ./coterie_0.1.0-dev_linux_"+runtime.GOARCH+".deb")
	if a, program, s := x.running(unit, dir); a != agent || s != server || !strings.HasSuffix(program, " (deleted)") {
		x.t.Errorf("the package has replaced what runs: agent %s, %s, server %s; were %s and %s", a, program, s, agent, server)
	}
	x.next("node")
	x.deb.until("the agent has the new program", func() bool { _, program, _ := x.running(unit, dir); return !strings.HasSuffix(program, " (deleted)") })
	if a, _, s := x.running(unit, dir); a != agent || s != server {
		x.t.Errorf("a reload has replaced the processes %s and %s by %s and %s", agent, server, a, s)
	}
	if len(x.left) > 0 {
		x.t.Errorf("blocks of the page that were not typed: %v", x.left)
	}
}
