package docs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/etcd/standalone"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/faultfs"
)

// guides are the pages whose commands TestGuides types, in this order, with the places of their blocks. Those of
// notTyped are not typed.
var guides = []struct{ page, kinds string }{
	{"docs/operating.md", "machines n1 others n1 w external any any any left lead follow sql n1 n3 n3 n1 any any"},
	{"docs/connecting.md", "primary sql any any sql client"},
	{"docs/continuity.md", "sql sql"},
	{"docs/coming-from-sql-server.md", "sql"},
	{"docs/how-to/console.md", "founding any any superuser certificate api changes"},
	{"docs/how-to/notify.md", "host any host"},
	{"docs/seeding.md", "any any sql any"},
	{"docs/replication-links.md", "any kernel"},
	{"docs/health.md", "any any any any"},
}

// notTyped are the places at which TestGuides types nothing, with the reason.
var notTyped = map[string]string{
	"machines":    "a step of the tutorial for three machines, which internal/test/e2e types",
	"kernel":      "it changes the kernel of its machine",
	"founding":    "the group of the page is there already; the nodes of the test have that port",
	"certificate": "it takes clients with certificates, whom internal/test/e2e has log in",
	"api":         "TestConsoleAPI types it",
	"changes":     "TestConsoleChanges reads it",
}

// otherBlocks are parts of files, which tests of their own read.
var otherBlocks = regexp.MustCompile("(?ms)^```(?:yaml|json|python)[^\n]*\n.*?^```$")

// guideBlocks returns the blocks of a guide that are typed somewhere.
func guideBlocks(t *testing.T, page string) []block {
	t.Helper()
	return blocksOf(t, otherBlocks.ReplaceAllString(pages(t)[page], ""))
}

// indented is a command in a block that no fence marks, so that no test would find it.
var indented = regexp.MustCompile(`(?m)^    (coterie|psql|systemctl) .*`)

// TestGuidesCanBeRead holds that a shell understands the blocks, and that they are those which the long test types.
func TestGuidesCanBeRead(t *testing.T) {
	all, machines := pages(t), ""
	for _, g := range guides {
		var kinds []string
		for _, b := range guideBlocks(t, g.page) {
			if kinds = append(kinds, b.kind); b.kind == "sql" || b.kind == "client" || b.kind == "superuser" {
				continue
			}
			if b.kind == "machines" {
				machines += b.text
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-n")
			cmd.Stdin = strings.NewReader(b.text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: a block that the shell does not understand: %v\n%s\n%s", g.page, err, out, b.text)
			}
		}
		if got := strings.Join(kinds, " "); got != g.kinds {
			t.Errorf("%s has the blocks %q, want %q", g.page, got, g.kinds)
		}
		if line := indented.FindString(all[g.page]); line != "" {
			t.Errorf("%s has a command without a fence: %s", g.page, line)
		}
	}
	for line := range strings.Lines(machines) {
		if !strings.Contains(all["docs/tutorials/three-machines.md"], "\n"+line) {
			t.Errorf("the tutorial for three machines, which a test types, does not have %s", line)
		}
	}
}

// unmarked counts the blocks for a shell that no test types as they are. The numbers may only shrink.
var unmarked = map[string]struct {
	blocks int
	why    string
}{
	"README.md":               {1, "TestCommandsOfTheReadmeAreTyped finds them in a tutorial that is typed"},
	"docs/adopting.md":        {4, "internal/postgres/adopt reads them from the page"},
	"docs/how-to/backup.md":   {7, "internal/test/e2e types those for a store, and does what the others do"},
	"docs/how-to/hammerdb.md": {1, "internal/test/e2e reads them, where HammerDB is installed"},
	"docs/how-to/pgbench.md":  {1, "internal/test/e2e does the same on addresses of its own"},
}

// TestBlocksWithoutAMark holds that each block for a shell has the mark by which a test finds it, but for those above.
func TestBlocksWithoutAMark(t *testing.T) {
	for page, text := range pages(t) {
		if strings.HasPrefix(page, "docs/reference/") {
			continue // made from the program
		}
		if n := strings.Count(text, "\n```sh\n"); n != unmarked[page].blocks {
			t.Errorf("%s has %d blocks for a shell without a mark, not %d", page, n, unmarked[page].blocks)
		}
	}
}

// TestGuides types the commands of the pages on a group of three replicas and a witness, which the first page forms.
func TestGuides(t *testing.T) {
	switch {
	case os.Getenv("COTERIE_LONG") == "":
		t.Skip("forms a group, loses its quorum, replaces nodes; COTERIE_LONG=1 runs it")
	case os.Geteuid() != 0:
		t.Skip("NOT RUN: the pages are for root")
	}
	for _, program := range []string{"psql", "curl", "setsid"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %s is not installed", program)
		}
	}
	h := newHand(t)
	for _, g := range guides {
		for i, b := range guideBlocks(t, g.page) {
			start := time.Now()
			t.Logf("%s, block %d, %s:\n%s%s(%v)", g.page, i, b.kind, b.text, h.block(b), time.Since(start).Round(100*time.Millisecond))
		}
	}
	if got := h.psql("select count(*) from notes"); got != "1000\n" {
		t.Errorf("%s of 1000 rows", got)
	}
}

// hand is a reader of the guides, who has the nodes of a lab in place of machines.
type hand struct {
	*reader
	ports    map[string]int    // the first of each node
	token    string            // that the command before has printed
	accounts map[string]string // what nodes said for a recovery
	disks    bool              // whether the disks of the lab can fail
}

// newHand makes an empty lab, and wraps the program: a node gets the place and ports that the lab has for it, is
// started as its unit would start it, and what a person would confirm is confirmed.
func newHand(t *testing.T) *hand {
	t.Helper()
	h := &hand{reader: newReader(t), ports: map[string]int{}, accounts: map[string]string{}, disks: faultfs.Possible() == nil}
	up := "coterie lab up --empty --witness"
	if h.disks {
		up += " --disk-faults"
	}
	var cases strings.Builder
	for _, m := range regexp.MustCompile(`(?m)^\S+ (init|join|witness)(?: --group lab| TOKEN)? (--node .* --name (\w+) --endpoint 127.0.0.1:(\d+) .*)$`).FindAllStringSubmatch(h.run(up), -1) {
		fmt.Fprintf(&cases, "\"%[1]s %[2]s\") shift; $inner %[2]s \"$@\" --no-start %[3]s; exec $inner lab start %[1]s ;;\n", m[3], m[1], m[2])
		h.ports[m[3]] = atoi(t, m[4]) - 2
	}
	if len(h.ports) != 4 {
		t.Fatalf("the lab says how to make %v", h.ports)
	}
	path := ""
	for _, e := range h.env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			path = p
		}
	}
	inner, _, _ := strings.Cut(path, ":")
	bin := filepath.Join(h.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	h.wrap(filepath.Join(bin, "coterie"), fmt.Sprintf("inner=%s/coterie\ncase \"$AT $1\" in\n%sesac\n"+
		"case \"$*\" in failover*--allow-data-loss*|'member re'*|leave|'destroy '*|'recover lead '*) set -- \"$@\" --yes ;; esac\nexec $inner \"$@\"\n", inner, cases.String()))
	h.wrap(filepath.Join(bin, "systemctl"), "case \"$1\" in start) exec coterie lab start $AT ;; esac\n"+
		"pid=$(pgrep -f \"agent --node $COTERIE_NODE\" | head -n 1)\nkill \"$pid\"\nwhile kill -0 \"$pid\" 2>/dev/null; do sleep 0.1; done\n")
	h.env = append(h.env, "PATH="+bin+":"+path, "PGCONNECT_TIMEOUT=10", "PGPASSWORD=not a secret")
	return h
}

func (h *hand) wrap(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func atoi(t *testing.T, s string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// node returns the directory of a node.
func (h *hand) node(name string) string { return filepath.Join(h.dir, "lab", name) }

// at types a text at a node.
func (h *hand) at(node, text string) string {
	h.t.Helper()
	out := h.run(fmt.Sprintf("export AT=%s COTERIE_NODE=%s\n%s", node, h.node(node), text))
	if m := regexp.MustCompile(`coterie (?:join|witness) (\S+)`).FindStringSubmatch(out); m != nil {
		h.token = m[1]
	}
	return out
}

// psql runs a statement as the pages' application.
func (h *hand) psql(statement string) string {
	h.t.Helper()
	dsn := fmt.Sprintf("postgresql://app@127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/orders", h.ports["n1"], h.ports["n2"], h.ports["n3"])
	return h.run("psql -XAtq -v ON_ERROR_STOP=1 -d '" + dsn + "' <<'TYPED'\n" + statement + "\nTYPED\n")
}

// status returns the state of the lab, as far as it can be read.
func (h *hand) status() (s lab.Status) {
	h.t.Helper()
	_ = json.Unmarshal([]byte(h.run("coterie lab status --json || true")), &s)
	return s
}

// await waits until the lab is as a function says.
func (h *hand) await(what string, is func(lab.Status) bool) lab.Status {
	h.t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		s := h.status()
		if is(s) {
			return s
		}
		if time.Now().After(end) {
			h.t.Fatalf("waited for %s: %s", what, h.run("coterie lab status; coterie status --node "+h.node("n1")+" || true"))
		}
	}
}

// whole waits until all members are well, and returns the primary.
func (h *hand) whole() string {
	h.t.Helper()
	s := h.await("a whole group", func(s lab.Status) bool { return s.Primary != nil && s.Ready() })
	return *s.Primary
}

// lead has n1 lead a whole group, as the pages say.
func (h *hand) lead() {
	h.t.Helper()
	if primary := h.whole(); primary != "n1" {
		h.at(primary, "coterie failover --to n1")
		h.whole()
	}
}

// empty takes a machine away that is to be another one.
func (h *hand) empty(name string) {
	h.t.Helper()
	h.run(fmt.Sprintf("coterie lab kill %s >&2 || true; find %s -mindepth 1 -delete", name, h.node(name)))
}

// again has an emptied machine join, with the token that was printed last or a new one.
func (h *hand) again(name, verb, token string) {
	h.t.Helper()
	if token == "" {
		h.newToken(map[string]string{"join": "replica", "witness": "witness"}[verb])
		token = h.token
	}
	h.at(name, "coterie "+verb+" "+token)
}

// newToken asks for a token, as soon as n1 leads.
func (h *hand) newToken(role string) {
	h.t.Helper()
	h.await("n1 leads", func(s lab.Status) bool { return s.Primary != nil && *s.Primary == "n1" })
	h.at("n1", "coterie member add-token --role "+role)
}

// block types a block at its place, once the group is as the text before it says.
func (h *hand) block(b block) (out string) {
	h.t.Helper()
	if why := notTyped[b.kind]; why != "" {
		return "not typed: " + why + "\n"
	}
	switch b.kind {
	case "others":
		for _, n := range []string{"n2", "n3"} { // the program prints tokens where it starts the node itself
			h.newToken("replica")
			out += h.at(n, strings.ReplaceAll(b.text, "TOKEN", h.token))
		}
		return out
	case "w":
		return h.at("w", strings.ReplaceAll(b.text, "TOKEN", h.token))
	case "external":
		return h.external(b.text)
	case "left":
		h.lead()
		h.run("coterie lab kill n3; coterie lab kill w")
		for _, n := range []string{"n1", "n2"} {
			said := h.at(n, b.text)
			out, h.accounts[n] = out+said, regexp.MustCompile(`account1\.\S+`).FindString(said)
		}
		return out
	case "lead":
		return h.at("n1", strings.ReplaceAll(b.text, "TEXT", h.accounts["n2"]))
	case "follow":
		out = h.at("n2", b.text)
		for n, verb := range map[string]string{"n3": "join", "w": "witness"} {
			h.empty(n)
			h.again(n, verb, "")
		}
		return out
	}
	if strings.Contains(b.text, "coterie init") {
		return h.at("n1", b.text)
	}
	if len(h.status().Witnesses) == 1 && h.status().Witnesses[0].State != "not made" {
		h.lead()
	}
	return h.typed(b)
}

// typed types a block on a group that is whole, and makes it whole again where the block took a member away.
func (h *hand) typed(b block) (out string) {
	h.t.Helper()
	switch {
	case b.kind == "sql":
		return h.at("n1", "coterie sql -f - <<'TYPED'\n"+strings.ReplaceAll(b.text, "'shop'", "'orders'")+"TYPED\n")
	case b.kind == "client":
		return h.psql("create table accounts (id int, balance int);\n" + b.text)
	case b.kind == "primary":
		return h.role(b.text)
	case b.kind == "superuser":
		h.run("cat > typed.sql <<'TYPED'\n" + b.text + "TYPED\n")
		return h.answered("runuser -u postgres -- psql -X -v ON_ERROR_STOP=1 -h " + h.socket() + " -f " + filepath.Join(h.dir, "typed.sql"))
	case b.kind == "host":
		h.wrap(filepath.Join(h.dir, "mail"), "cat > /dev/null\n")
		return h.at("n1", strings.NewReplacer("/etc/coterie", filepath.Join(h.dir, "etc"), "/var/lib/coterie", h.node("n1"), "sudo ", "").Replace(b.text))
	case b.kind == "n3":
		out = h.at("n3", b.text)
	case strings.Contains(b.text, "member replace"):
		h.run("coterie lab kill n3")
		out = h.at("n1", b.text)
		h.empty("n3")
		h.again("n3", "join", h.token)
		return out
	case strings.Contains(b.text, "--from /mnt"):
		return h.restored(b.text)
	case strings.Contains(b.text, "resume n2") && !strings.Contains(b.text, "failover"):
		h.quarantine()
	}
	if b.kind != "n3" {
		out = h.lines(b.text)
	}
	if b.kind == "n3" || strings.Contains(b.text, "member remove") {
		h.empty("n3")
		h.again("n3", "join", "")
	}
	return out
}

// lines types the lines of a block one by one: after a planned failover a reader looks before the next one.
func (h *hand) lines(text string) (out string) {
	h.t.Helper()
	text = strings.ReplaceAll(text, "127.0.0.1:8008", fmt.Sprintf("127.0.0.1:%d", h.ports["n1"]+3))
	if strings.Contains(text, "<<") || strings.Contains(text, "\\\n") {
		return h.at("n1", text)
	}
	for line := range strings.Lines(text) {
		if out += h.at("n1", line); strings.HasPrefix(line, "coterie failover") && !strings.Contains(line, "--allow-data-loss") {
			h.whole()
		}
	}
	return out
}

// external types the founding of another group, on an etcd of its own.
func (h *hand) external(text string) string {
	h.t.Helper()
	dir := filepath.Join(h.dir, "external")
	if err := os.Mkdir(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	etcd := standalone.New(h.t, filepath.Join(dir, "etcd"))
	h.run("chown postgres " + dir + " " + etcd.Key)
	text = regexp.MustCompile(`https://10\.\S+`).ReplaceAllString(text, etcd.Endpoint())
	text = strings.NewReplacer("/etc/coterie/etcd-ca.crt", etcd.CA, "/etc/coterie/etcd.crt", etcd.Cert, "/etc/coterie/etcd.key", etcd.Key).Replace(text)
	return h.run(fmt.Sprintf("export COTERIE_NODE=%s/node\n%s", dir, strings.TrimSpace(text)))
}

// role types the block that makes a role, whose password is asked for, and makes rows that must stay.
func (h *hand) role(text string) string {
	h.t.Helper()
	out := h.answered(strings.ReplaceAll(text, "$(coterie config socket)", h.socket()))
	h.psql("create table notes as select i, 'kept' as t from generate_series(1, 1000) i")
	return out
}

// answered types a command that asks for a password twice.
func (h *hand) answered(text string) string {
	h.t.Helper()
	return h.run("printf '%s\\n%s\\n' \"$PGPASSWORD\" \"$PGPASSWORD\" | setsid -w " + text)
}

// socket returns the directory of the sockets of n1's server.
func (h *hand) socket() string {
	h.t.Helper()
	run := h.run("tr '\\0' ' ' < /proc/$(pgrep -f '[k]eeper --dir " + h.node("n1") + "' | head -n 1)/cmdline")
	socket := regexp.MustCompile(`--run (\S+)`).FindStringSubmatch(run)
	if socket == nil {
		h.t.Fatalf("the keeper of n1 has no directory of sockets: %s", run)
	}
	return socket[1] + "/pg"
}

// restored types a copy that begins with a directory which is there already, on a machine in place of n3.
func (h *hand) restored(text string) string {
	h.t.Helper()
	copied := filepath.Join(h.dir, "restored")
	h.run("coterie lab kill n3; cp -a " + h.node("n3") + "/pgdata " + copied)
	h.at("n1", "coterie member replace n3")
	h.empty("n3")
	h.again("n3", "join", h.token)
	h.await("a replica without a copy", func(s lab.Status) bool {
		r, ok := s.Replica("n3")
		return ok && r.Connected == "CONNECTED"
	})
	return h.at("n1", strings.ReplaceAll(text, "/mnt/restored/pgdata", copied))
}

// quarantine has the disk of n2 lose a write, where the lab has disks that do.
func (h *hand) quarantine() {
	h.t.Helper()
	if !h.disks {
		h.t.Log("NOT RUN: a disk that loses a write, which needs FUSE: nothing is under quarantine")
		return
	}
	h.run("coterie lab disk n2 --fail")
	h.psql("insert into notes select i, 'kept' from generate_series(2001, 3000) i; delete from notes where i > 1000")
	h.run("k=0; until coterie lab status | grep -q quarantined; do k=$((k+1)); test $k -lt 600; sleep 0.1; done; coterie lab disk n2 --heal; coterie lab start n2 || true")
	h.run("k=0; until coterie status --node " + h.node("n1") + " | grep -q 'the copy of n2 is under quarantine'; do k=$((k+1)); test $k -lt 600; sleep 0.1; done")
}
