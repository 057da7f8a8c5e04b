package docs

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/bench/patroni"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/ports"
)

const fromPatroni = "docs/tutorials/from-patroni.md"

// TestFromPatroniCanBeRead holds that a shell understands the page, and that the long test knows its blocks.
func TestFromPatroniCanBeRead(t *testing.T) {
	var kinds []string
	for _, b := range blocksOf(t, pages(t)[fromPatroni]) {
		kinds = append(kinds, b.kind)
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(b.text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b.text)
		}
	}
	if got, want := strings.Join(kinds, " "), "set look primary stop server-primary server-others adopt others"; got != want {
		t.Errorf("the page has the blocks %q, want %q", got, want)
	}
}

// mover is an administrator who moves a Patroni on this machine, where a directory takes the place of each machine.
type mover struct {
	*reader
	cluster *patroni.Cluster
	dir     string // of the cluster
	primary string
	others  []string
	port    int // the first of those for nodes
	agents  []*exec.Cmd
}

// TestFromPatroni moves a Patroni with three nodes by the commands of the page.
func TestFromPatroni(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("makes a Patroni with three nodes and moves it; COTERIE_LONG=1 runs it")
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: the page is for root")
	}
	found, err := patroni.Find(t.Context())
	if err != nil {
		t.Skip("NOT RUN: ", err)
	}
	m := newMover(t, found)
	dsn := m.cluster.ReadWrite(patroni.Default)
	m.sql(dsn, "create table notes as select i, 'kept' as t from generate_series(1, 1000) i")
	m.sql(dsn, "create role app login password 'not a secret'")
	for _, b := range blocksOf(t, pages(t)[fromPatroni]) {
		start := time.Now()
		t.Logf("%s:\n%s%s(%v)", b.kind, b.text, m.block(b), time.Since(start).Round(100*time.Millisecond))
	}
	m.await()
	old, err := url.Parse(m.cluster.DSN(m.primary))
	if err != nil {
		t.Fatal(err)
	}
	if got := m.sql(old.String(), "select count(*) from notes"); got != "1000" {
		t.Errorf("by the old port the group has %q of 1000 rows", got)
	}
	m.sql(old.String(), "insert into notes values (0, 'written')")
	if got := m.sql(fmt.Sprintf("postgresql://app:not%%20a%%20secret@127.0.0.1:%d/postgres", m.port+5), "select current_setting('coterie.replica')"); got == "" {
		t.Error("the role does not log in at another node")
	}
}

func newMover(t *testing.T, found patroni.Programs) *mover {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Skip("NOT RUN: ", err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	servers, err := programs.Find(t.Context())
	if err != nil || len(servers) == 0 {
		t.Fatal(err)
	}
	m := &mover{reader: newReader(t), port: ports.Range(t, 12)}
	if m.dir, err = os.MkdirTemp("/var/tmp", "cotmove"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(m.dir) })
	m.cluster, err = patroni.Start(t.Context(), patroni.Options{Programs: found, Dir: m.dir, Bin: servers[0].BinDir, UID: uid, GID: gid})
	t.Cleanup(m.stop)
	if err != nil {
		t.Fatal(err)
	}
	if m.primary, err = m.cluster.Primary(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range m.cluster.Names() {
		if name != m.primary {
			m.others = append(m.others, name)
		}
	}
	m.env = append(m.env, "PATH="+servers[0].BinDir+":"+m.path())
	return m
}

// path returns the search path of the reader.
func (m *mover) path() (path string) {
	for _, e := range m.env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			path = p
		}
	}
	return path
}

// stop ends the agents in order, and the rest of Patroni.
func (m *mover) stop() {
	for _, a := range m.agents {
		_ = a.Process.Signal(syscall.SIGTERM)
	}
	for _, a := range m.agents {
		ended := time.AfterFunc(time.Minute, func() { _ = a.Process.Kill() })
		_ = a.Wait()
		ended.Stop()
	}
	if m.cluster != nil {
		if err := m.cluster.Stop(); err != nil {
			m.t.Error(err)
		}
	}
}

func (m *mover) node(name string) string { return filepath.Join(m.dir, name, "coterie") }

func (m *mover) data(name string) string { return filepath.Join(m.dir, name, "data") }

// block does a block at its places.
func (m *mover) block(b block) string {
	m.t.Helper()
	switch b.kind {
	case "set":
		if !strings.HasPrefix(b.text, "data=") || !strings.Contains(b.text, "\nconfig=") {
			m.t.Fatal("the page has other variables")
		}
		return ""
	case "look":
		out, code := m.at(m.primary, b.text, "")
		if code != 4 || !strings.Contains(out, "is running") {
			m.t.Errorf("exit code %d, want 4", code)
		}
		return out
	case "primary":
		return m.done(m.primary, b.text, "")
	case "stop":
		for _, name := range append(m.others, m.primary) {
			if err := m.cluster.Leave(name); err != nil {
				m.t.Fatal(err)
			}
		}
		return ""
	case "server-primary":
		return m.done(m.primary, b.text, "postgres")
	case "server-others":
		return m.done(m.others[0], b.text, "postgres") + m.done(m.others[1], b.text, "postgres")
	case "adopt":
		out := m.done(m.primary, b.text, "")
		m.start(m.primary)
		return out
	case "others":
		var out string
		for _, name := range m.others {
			var token string
			m.until("a token", func() bool {
				said, code := m.at(m.primary, "coterie member add-token", "")
				found := regexp.MustCompile(`coterie join (\S+)`).FindStringSubmatch(said)
				if code == 0 && found != nil {
					token = found[1]
				}
				return token != ""
			})
			out += m.done(name, strings.ReplaceAll(b.text, "TOKEN", token), "")
			m.start(name)
		}
		return out
	}
	m.t.Fatalf("a block of the page is marked %q", b.kind)
	return ""
}

// at runs a text on the machine of a node, as root or as another user. The wrapper gives coterie the ports and the
// directory that a machine of its own would not need.
func (m *mover) at(name, text, as string) (out string, code int) {
	m.t.Helper()
	port := m.port
	for i, other := range m.cluster.Names() {
		if other == name {
			port += 4 * i
		}
	}
	flags := fmt.Sprintf("--no-start --name %s --address 127.0.0.1 --endpoint 127.0.0.1:%d --read-only 127.0.0.1:%d --http 127.0.0.1:%d", name, port, port+2, port+3)
	file := filepath.Join(m.dir, "typed")
	typed := fmt.Sprintf("set -e\ncd /\nexport COTERIE_NODE=%[1]s\ndata=%[2]s\nconfig=%[3]s\n"+
		"coterie() { case $1 in init) shift; command coterie init --node %[1]s %[4]s \"$@\" ;;\n"+
		"join) shift; command coterie join --node %[1]s %[4]s --read-write 127.0.0.1:%[5]d \"$@\" ;;\n*) command coterie \"$@\" ;; esac; }\n%[6]s",
		m.node(name), m.data(name), filepath.Join(m.dir, name, "patroni.yml"), flags, port+1, text)
	if err := os.WriteFile(file, []byte(typed), 0o644); err != nil {
		m.t.Fatal(err)
	}
	args := []string{"sh", file}
	if as != "" {
		args = append([]string{"runuser", "-u", as, "--"}, args...)
	}
	cmd := exec.CommandContext(m.t.Context(), args[0], args[1:]...)
	cmd.Env, cmd.Dir = m.env, "/"
	cmd.WaitDelay = time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	_ = cmd.Run()
	return said.String(), cmd.ProcessState.ExitCode()
}

func (m *mover) done(name, text, as string) string {
	m.t.Helper()
	out, code := m.at(name, text, as)
	if code != 0 {
		m.t.Fatalf("at %s: %s\nexit code %d\n%s", name, text, code, out)
	}
	return out
}

// start starts the agent of a node, as its service does.
func (m *mover) start(name string) {
	m.t.Helper()
	cmd := exec.Command(program(m.t), "agent", "--node", m.node(name))
	cmd.Dir, cmd.Env = "/", m.env
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.agents = append(m.agents, cmd)
}

func (m *mover) sql(dsn, statement string) string {
	m.t.Helper()
	return strings.TrimSpace(m.run(fmt.Sprintf("PGCONNECT_TIMEOUT=20 psql -XAtqd '%s' -c \"%s\"", dsn, statement)))
}

func (m *mover) await() {
	m.t.Helper()
	m.until("a healthy group", func() bool {
		_, code := m.at(m.primary, "coterie status --check", "")
		return code == 0
	})
}

func (m *mover) until(what string, is func() bool) {
	m.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !is(); time.Sleep(500 * time.Millisecond) {
		if time.Now().After(end) {
			out, _ := m.at(m.primary, "coterie status", "")
			m.t.Fatalf("waited for %s:\n%s", what, out)
		}
	}
}
