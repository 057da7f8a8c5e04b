package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// The documented exit codes.
const (
	exitError     = 1
	exitUsage     = 2
	exitUnhealthy = 3
	exitRefused   = 4
)

// mistake is a command that must fail without having changed anything.
type mistake struct {
	name string
	args []string
	code int
	says string // part of the message
}

// badInput makes every mistake that the documentation warns about.
func badInput(t *testing.T, g *group) {
	s := g.ready(t)
	d := newDesk(t, g, *s.Primary)
	for _, list := range [][]mistake{d.tokens(t), d.nodes(t), d.files(t), d.commands()} {
		for _, m := range list {
			t.Run(m.name, func(t *testing.T) { d.make(t, m) })
		}
	}
	t.Run("with a member that is admitted and not started", d.admitted)
	if now := g.ready(t); now.Epoch != s.Epoch || *now.Primary != *s.Primary || len(now.Replicas) != len(s.Replicas) {
		t.Errorf("the mistakes changed the group: %+v", now)
	}
}

// desk is the directory beside the lab in which mistakes are made, with their files and addresses.
type desk struct {
	g       *group
	primary string // its node directory
	dir     string
	node    string // a node directory that does not exist
	ports   []string
	taken   string // an address that another process listens on
}

func newDesk(t *testing.T, g *group, primary string) *desk {
	t.Helper()
	d := &desk{g: g, primary: g.node(primary), dir: filepath.Join(filepath.Dir(g.Dir()), "desk")}
	d.node = filepath.Join(d.dir, "new")
	mkdir(t, d.dir)
	port := freePorts(t)
	for i, flag := range []string{"--endpoint", "--read-write", "--read-only", "--http"} {
		d.ports = append(d.ports, flag, net.JoinHostPort("127.0.0.1", strconv.Itoa(port+i)))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	d.taken = l.Addr().String()
	return d
}

// make makes a mistake and checks its effect.
func (d *desk) make(t *testing.T, m mistake) {
	t.Helper()
	before := picture(t, d.dir)
	a := coterie(t, m.args...)
	for began := time.Now(); strings.Contains(a.err, "a host that is not as busy") && time.Since(began) < patience; {
		a = coterie(t, m.args...) // it is right to refuse, and not the mistake that this is about
	}
	if a.code != m.code {
		t.Errorf("exit code %d, wanted %d: %s", a.code, m.code, a.err)
	}
	if !strings.Contains(a.err, m.says) {
		t.Errorf("the message lacks %q: %s", m.says, a.err)
	}
	for _, bad := range []string{"panic", "goroutine", "%!"} {
		if strings.Contains(a.err, bad) {
			t.Errorf("the message has %q: %s", bad, a.err)
		}
	}
	if after := picture(t, d.dir); after != before {
		t.Errorf("changed on disk:\n%s", difference(before, after))
	}
}

// picture lists everything in dir with owner, mode and content.
func picture(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		sum := ""
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(content))
		}
		_, err = fmt.Fprintln(&b, path, info.Mode(), info.Sys().(*syscall.Stat_t).Uid, sum)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new", "other"} {
		b.WriteString(strings.Join(runDirsOf(t, filepath.Join(dir, name)), "\n"))
	}
	return b.String()
}

// runDirsOf finds the private directory that a node directory has elsewhere, for any user.
func runDirsOf(t *testing.T, node string) []string {
	t.Helper()
	l, err := config.NewLayout(node)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, parent := range []string{"/run/coterie", "/tmp/coterie-*"} {
		found, err := filepath.Glob(filepath.Join(parent, filepath.Base(l.Run)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, found...)
	}
	return out
}

func difference(before, after string) string {
	var out []string
	for _, l := range strings.Split(after, "\n") {
		if !strings.Contains(before, l+"\n") {
			out = append(out, "+ "+l)
		}
	}
	for _, l := range strings.Split(before, "\n") {
		if !strings.Contains(after, l+"\n") {
			out = append(out, "- "+l)
		}
	}
	return strings.Join(out, "\n")
}

func (d *desk) new(verb ...string) []string {
	return slices.Concat(verb, []string{"--node", d.node, "--name", "n9", "--no-start"}, d.ports)
}

// with replaces the value of a flag.
func with(args []string, flag, value string) []string {
	args = slices.Clone(args)
	args[slices.Index(args, flag)+1] = value
	return args
}

// token returns a token that the group has made.
func (d *desk) token(t *testing.T, args ...string) api.TokenResult {
	t.Helper()
	a := must(t, append([]string{"token", "create", "--json", "--node", d.primary}, args...)...)
	var r api.TokenResult
	if err := json.Unmarshal([]byte(a.out), &r); err != nil {
		t.Fatalf("%v: %s", err, a.out)
	}
	return r
}

// forged returns a token that the group has not made.
func (d *desk) forged(t *testing.T, ca *certs.CA) string {
	t.Helper()
	s, err := d.g.status(t, filepath.Base(d.primary))
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := endpoint.NewToken(ca, endpoint.TokenOptions{Role: "replica", Addresses: []string{member(s, filepath.Base(d.primary)).Endpoint}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (d *desk) tokens(t *testing.T) []mistake {
	t.Helper()
	good, witness := d.token(t).Token, d.token(t, "--role", "witness").Token
	short := d.token(t, "--ttl", "1s")
	ours, err := certs.LoadCA(filepath.Join(d.primary, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := certs.NewCA(ag.GroupID(uuid.NewString()), "foreign")
	if err != nil {
		t.Fatal(err)
	}
	for time.Now().Before(short.Expires.Add(10 * time.Millisecond)) {
		time.Sleep(10 * time.Millisecond)
	}
	return []mistake{
		{"no token", d.new("join"), exitUsage, "join token"},
		{"malformed token", d.new("join", "coterie1.notatoken"), exitUsage, "not a whole join token"},
		{"not a token at all", d.new("join", "hello"), exitUsage, "not a whole join token"},
		{"cut token", d.new("join", good[:len(good)-3]), exitUsage, "not a whole join token"},
		{"expired token", d.new("join", short.Token), exitUsage, "has expired"},
		{"unknown token", d.new("join", d.forged(t, ours)), exitUsage, "does not know this token"},
		{"token of a foreign group", d.new("join", d.forged(t, foreign)), exitUsage, "group"},
		{"a witness's token for a replica", d.new("join", witness), exitUsage, "coterie witness"},
		{"a replica's token for a witness", d.new("witness", good), exitUsage, "coterie join"},
		{"name taken", with(d.new("join", good), "--name", "n2"), exitUsage, "n2"},
		{"endpoint taken", with(d.new("join", good), "--endpoint", d.taken), exitError, d.taken},
		{"role that is none", []string{"token", "create", "--role", "king", "--node", d.primary}, exitUsage, "king"},
	}
}

func (d *desk) nodes(t *testing.T) []mistake {
	t.Helper()
	full := filepath.Join(d.dir, "full")
	mkdir(t, full)
	if err := os.WriteFile(filepath.Join(full, "file"), []byte("somebody's"), 0o644); err != nil {
		t.Fatal(err)
	}
	installed, err := programs.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	absent := 14
	for slices.ContainsFunc(installed, func(in programs.Install) bool { return in.Major == absent }) {
		absent++
	}
	major := strconv.Itoa(absent)
	token := d.token(t).Token
	return []mistake{
		{"init in a directory with files", with(d.new("init"), "--node", full), exitRefused, "not empty"},
		{"join in a directory with files", with(d.new("join", token), "--node", full), exitRefused, "not empty"},
		{"init on a port that is taken", with(d.new("init"), "--read-write", d.taken), exitError, d.taken},
		{"init with a major that is not there", d.new("init", "--pg-major", major), exitUsage, "PostgreSQL " + major},
		{"join with a major that is not there", d.new("join", token, "--pg-major", major), exitUsage, "PostgreSQL " + major},
		{"init with a name that is none", with(d.new("init"), "--name", "N-9"), exitUsage, "N-9"},
		{"init with a profile that is none", d.new("init", "--profile", "slow"), exitUsage, "slow"},
		{"init with an address that is none", with(d.new("init"), "--http", "8008"), exitUsage, "8008"},
		{"agent in a directory that is not there", []string{"agent", "--node", d.node}, exitUsage, "coterie init"},
		{"agent in somebody's directory", []string{"agent", "--node", full}, exitUsage, "coterie init"},
		{"status of a directory that is not there", []string{"status", "--node", filepath.Join(d.dir, "absent")}, exitUsage, "coterie init"},
	}
}

// files are mistakes in a configuration file.
func (d *desk) files(t *testing.T) []mistake {
	t.Helper()
	good, err := os.ReadFile(filepath.Join(d.primary, "coterie.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	edited := filepath.Join(d.dir, "edited")
	mkdir(t, edited)
	line := strings.Count(string(good), "\n") + 1
	if err := os.WriteFile(filepath.Join(edited, "coterie.yaml"), append(good, "replicas: 3\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	where := fmt.Sprintf("[%d:", line)
	return []mistake{
		{"config check with an unknown key", []string{"config", "check", "--node", edited}, exitUsage, where},
		{"the key is named", []string{"config", "check", "--node", edited}, exitUsage, "replicas"},
		{"agent with an unknown key", []string{"agent", "--node", edited}, exitUsage, where},
	}
}

func (d *desk) commands() []mistake {
	at := func(args ...string) []string { return append(args, "--node", d.primary) }
	return []mistake{
		{"unknown command", []string{"promote"}, exitUsage, "promote"},
		{"unknown command of a command", []string{"token", "destroy"}, exitUsage, "destroy"},
		{"unknown flag", at("status", "--verbose"), exitUsage, "--verbose"},
		{"wrong value of a flag", at("token", "create", "--ttl", "soon"), exitUsage, "soon"},
		{"argument too many", at("status", "now"), exitUsage, "no arguments"},
		{"failover to nobody known", at("failover", "--to", "n77"), exitUsage, "n77"},
		{"failover to the primary", at("failover", "--to", filepath.Base(d.primary)), exitRefused, "already"},
		{"forced failover to nobody", at("failover", "--allow-data-loss", "--yes"), exitUsage, "--to"},
		{"forced failover without a yes", at("failover", "--to", "n2", "--allow-data-loss"), exitRefused, "--yes"},
		{"remove nobody known", at("remove", "n77", "--yes"), exitUsage, "n77"},
		{"remove the primary", at("remove", filepath.Base(d.primary), "--yes"), exitRefused, "primary"},
		{"resume nobody known", at("resume", "n77"), exitUsage, "n77"},
	}
}

// admitted joins a node that is never started, and removes it again.
func (d *desk) admitted(t *testing.T) {
	token := d.token(t).Token
	must(t, d.new("join", token)...)
	defer func() {
		for _, run := range runDirsOf(t, d.node) { // the directory of a node is its owner's to remove
			_ = os.RemoveAll(run)
		}
		must(t, "remove", "n9", "--yes", "--node", d.primary)
		if a := coterie(t, "failover", "--to", "n9", "--node", d.primary); a.code != exitUsage {
			t.Errorf("failover to a member that was removed: %d %s", a.code, a.err)
		}
	}()
	other := slices.Clone(d.new("join", token))
	other = with(with(other, "--node", filepath.Join(d.dir, "other")), "--name", "n8")
	for _, m := range []mistake{
		{"used token", other, exitUsage, "used already"},
		{"the directory again", d.new("join", d.token(t).Token), exitRefused, "not empty"},
		{"status without an agent", []string{"status", "--node", d.node}, exitUnhealthy, "coterie agent"},
		{"failover without an agent", []string{"failover", "--to", "n2", "--node", d.node}, exitUnhealthy, "coterie agent"},
		{"failover to a replica that does not answer", []string{"failover", "--to", "n9", "--node", d.primary}, exitRefused, "does not answer"},
	} {
		t.Run(m.name, func(t *testing.T) { d.make(t, m) })
	}
	d.g.acknowledged(t, 20)
}
