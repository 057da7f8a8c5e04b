package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/majors"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// howTo are the pages whose commands TestHowToPages runs, in this order, with the kinds of their blocks.
var howTo = []struct{ page, kinds string }{
	{"docs/how-to/maintenance.md", "any any sql"},
	{"docs/how-to/support-bundle.md", "any any"},
	{"docs/how-to/settings.md", "any sql any"},
	{"docs/how-to/upgrade.md", "any secondary any major major major major major major set any"},
	{"docs/how-to/restore.md", "set server set server set server server adopt"},
	{"docs/how-to/leave.md", "set stays set stays server"},
}

// TestHowToPagesCanBeRead holds that a shell understands the blocks, and that they are those which the long test runs.
func TestHowToPagesCanBeRead(t *testing.T) {
	all := pages(t)
	for _, h := range howTo {
		var kinds []string
		for _, b := range blocksOf(t, all[h.page]) {
			if kinds = append(kinds, b.kind); b.kind == "sql" {
				continue
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-n")
			cmd.Stdin = strings.NewReader(b.text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: a block that the shell does not understand: %v\n%s\n%s", h.page, err, out, b.text)
			}
		}
		if got := strings.Join(kinds, " "); got != h.kinds {
			t.Errorf("%s has the blocks %q, want %q", h.page, got, h.kinds)
		}
	}
}

// TestHowToPages runs the commands of the pages on a group of two replicas and a witness. The last page ends the group.
func TestHowToPages(t *testing.T) {
	switch {
	case os.Getenv("COTERIE_LONG") == "":
		t.Skip("upgrades, restores and leaves a group; COTERIE_LONG=1 runs it")
	case os.Geteuid() != 0:
		t.Skip("NOT RUN: the pages are for root, and for the server's user")
	}
	if _, err := os.Stat("/var/run/postgresql"); err != nil {
		t.Skipf("NOT RUN: a server by itself would have no place for its socket: %v", err)
	}
	h := newHowTo(t)
	h.run("create table notes (id int primary key, t text)")
	h.run("insert into notes select i, 'kept' from generate_series(1, 1000) i")
	for _, p := range howTo {
		if p.page == "docs/how-to/upgrade.md" {
			h.install("0.2.0-test")
		}
		for i, b := range blocksOf(t, pages(t)[p.page]) {
			h.settle()
			start := time.Now()
			t.Logf("%s, block %d:\n%s%s(%v)", p.page, i, b.text, h.block(b), time.Since(start).Round(100*time.Millisecond))
			if p.page == "docs/how-to/restore.md" && strings.Contains(b.text, "pg_verifybackup") {
				h.run("delete from notes where id % 2 = 0") // the mistake
			}
		}
		if p.page == "docs/how-to/upgrade.md" {
			h.runs("0.2.0-test")
		}
		if p.page == "docs/how-to/leave.md" {
			break
		}
		if got := h.run("select count(*) from notes"); got != "1000" {
			t.Fatalf("after %s: %s of 1000 rows", p.page, got)
		}
	}
	if got := h.as("server", `psql -Atd postgres -c "select count(*) from notes"; pg_ctl -w -D "$data" stop >&2`); !strings.HasPrefix(got, "1000\n") {
		t.Errorf("the server that left has %s rows", got)
	}
}

// manual is a reader of the how-to pages, who has a lab in place of machines.
type manual struct {
	*reader
	group  string            // the connection string of the lab
	values map[string]string // what the reader sets in place of a page's examples
	ended  bool              // whether the group has been given up
	newer  programs.Install  // another major version to which the group can be upgraded; zero: none is here
}

func newHowTo(t *testing.T) *manual {
	t.Helper()
	found, err := programs.Find(t.Context())
	if err != nil || len(found) == 0 {
		t.Fatal(err)
	}
	h := &manual{reader: newReader(t)}
	if older, newer, ok := majors.Find(t); ok && older.Major == found[0].Major {
		h.newer = newer
		h.env = append(h.env, "COTERIE_PG_BINDIRS="+older.BinDir+":"+newer.BinDir)
	}
	mine, bin, port := filepath.Join(h.dir, "mine"), filepath.Join(h.dir, "bin"), ports.Range(t, 8)
	for _, dir := range []string{mine, bin} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "chown", "postgres", mine).CombinedOutput(); err != nil { // it makes its directories in it
		t.Fatalf("%v: %s", err, out)
	}
	path := ""
	for _, e := range h.env {
		if strings.HasPrefix(e, "PATH=") {
			path = strings.TrimPrefix(e, "PATH=")
		}
	}
	inner, _, _ := strings.Cut(path, ":")
	h.wrap(filepath.Join(bin, "coterie"), fmt.Sprintf("case $1 in init) shift; exec %[1]s/coterie init --no-start --node %[2]s/node --address 127.0.0.1 "+
		"--endpoint 127.0.0.1:%[3]d --read-write 127.0.0.1:%[4]d --read-only 127.0.0.1:%[5]d --http 127.0.0.1:%[6]d \"$@\" ;; esac\nexec %[1]s/coterie \"$@\"\n",
		inner, mine, port, port+1, port+2, port+3))
	h.wrap(filepath.Join(bin, "systemctl"), "pid=$(pgrep -f \"agent --node $COTERIE_NODE\" | head -n 1)\nkill \"$pid\"\nwhile kill -0 \"$pid\" 2>/dev/null; do sleep 0.1; done\n")
	h.env = append(h.env, "PATH="+bin+":"+found[0].BinDir+":"+path, "PGCONNECT_TIMEOUT=10")
	h.values = map[string]string{
		"socket": "$(sed -n 's/.*--run \\([^ ]*\\).*/\\1/p' " + mine + "/keeper)/pg",
		"backup": mine + "/backup", "copy": mine + "/copy", "database": "postgres", "table": "notes",
		"data": fmt.Sprintf("%s/left\nexport PGPORT=%d", mine, port+4),
		"new":  fmt.Sprintf("'host=%s port=%d dbname=postgres user=postgres'", mine, port+5),
	}
	h.reader.run("coterie lab up --replicas 2 --witness")
	uri := regexp.MustCompile(`read-write +(postgresql://\S+)`).FindStringSubmatch(h.reader.run("coterie lab status"))
	if uri == nil {
		t.Fatal("the lab says no connection string")
	}
	_, password, _ := strings.Cut(strings.TrimPrefix(uri[1], "postgresql://"), ":")
	password, _, _ = strings.Cut(password, "@")
	h.env = append(h.env, "PGPASSWORD="+password)
	h.group, h.values["group"], h.values["old"] = uri[1], "'"+uri[1]+"'", "'"+uri[1]+"'"
	h.as("server", fmt.Sprintf("cd %s; initdb -A trust new >&2; pg_ctl -w -D new -l new.log -o \"-p %d -k %s -c listen_addresses=''\" start >&2", mine, port+5, mine))
	t.Cleanup(func() {
		for _, d := range []string{"new", "copy", "left"} { // those that run
			_ = exec.Command("runuser", "-u", "postgres", "--", filepath.Join(found[0].BinDir, "pg_ctl"), "-m", "immediate", "-D", filepath.Join(mine, d), "stop").Run()
		}
	})
	return h
}

// install replaces the program by one that is of another version, as a package manager does. Running
// agents go on.
func (h *manual) install(version string) {
	h.t.Helper()
	bin := program(h.t)
	build := exec.CommandContext(h.t.Context(), "go", "build", "-ldflags", "-X github.com/coteriedb/coterie/internal/lib/buildinfo.Version="+version, "-o", bin+".new", "github.com/coteriedb/coterie/cmd/coterie")
	if out, err := build.CombinedOutput(); err != nil {
		h.t.Fatalf("%v: %s", err, out)
	}
	if err := os.Rename(bin+".new", bin); err != nil {
		h.t.Fatal(err)
	}
}

// runs checks that every agent is of that version.
func (h *manual) runs(version string) {
	h.t.Helper()
	out := h.reader.run("COTERIE_NODE=" + filepath.Join(h.dir, "lab", "n1") + " coterie upgrade agents --dry-run")
	if strings.Count(out, ": runs "+version+" ") != 3 {
		h.t.Errorf("not every agent was upgraded:\n%s", out)
	}
}

// wrap writes a program of the shell.
func (h *manual) wrap(path, text string) {
	h.t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

// run runs a statement in the group.
func (h *manual) run(statement string) string {
	h.t.Helper()
	return strings.TrimSpace(h.reader.run(fmt.Sprintf("psql -XAtd '%s' -c \"%s\"", h.group, statement)))
}

// as runs a text as a person who has done the earlier blocks: on the machine of a node, or as the server's user.
func (h *manual) as(kind, text string) string {
	h.t.Helper()
	if kind != "server" {
		return h.reader.run(text)
	}
	file := filepath.Join(h.dir, "block")
	h.wrap(file, "set -e\ncd "+filepath.Join(h.dir, "mine")+"\n"+h.prelude+"\n"+text)
	return h.reader.run("runuser -u postgres -- " + file)
}

// settle waits until every replica is synchronized, as the pages say before they go on.
func (h *manual) settle() {
	h.t.Helper()
	for end := time.Now().Add(5 * time.Minute); !h.ended; time.Sleep(200 * time.Millisecond) {
		s := h.reader.run("coterie lab status --json || true")
		if strings.Count(s, `"synchronization_state": "SYNCHRONIZED"`) == 2 && strings.Count(s, `"connected_state": "CONNECTED"`) == 3 && primaryOf(s) != "" {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("not synchronized: %s", s)
		}
	}
}

func primaryOf(status string) string {
	m := regexp.MustCompile(`"primary": "(n\d)"`).FindStringSubmatch(status)
	if m == nil {
		return ""
	}
	return m[1]
}

// block runs a block of a page at its place.
func (h *manual) block(b block) string {
	h.t.Helper()
	primary, other := "", "n1"
	if !h.ended {
		primary = primaryOf(h.reader.run("coterie lab status --json"))
	}
	if primary == "n1" {
		other = "n2"
	}
	at := map[string]string{"secondary": other, "any": primary, "major": primary, "sql": primary, "stays": h.values["stays"]}[b.kind]
	switch {
	case b.kind == "set":
		return h.set(b.text, primary, other)
	case b.kind == "major" && h.newer.Major == 0:
		return "NOT RUN: no second major version of PostgreSQL with pg_upgrade is here\n"
	case b.kind == "major":
		b.text = strings.ReplaceAll(b.text, "--to 17", fmt.Sprintf("--to %d", h.newer.Major))
	case b.kind == "sql": // of the group that the pages call orders
		b.text = "coterie sql -f - <<'END'\n" + strings.ReplaceAll(b.text, "orders", "lab") + "END\n"
	case strings.Contains(b.text, "coterie member remove"):
		h.ended = true
	}
	if at != "" {
		b.text = "export COTERIE_NODE=" + filepath.Join(h.dir, "lab", at) + "\n" + b.text
	}
	return h.as(b.kind, b.text)
}

// set gives the names of a block values that fit the lab.
func (h *manual) set(text, primary, other string) string {
	h.t.Helper()
	if !h.ended {
		h.values["stays"], h.values["others"] = other, "'"+primary+" w'"
		h.reader.run("tr '\\0' ' ' < /proc/$(pgrep -f '[k]eeper --dir " + filepath.Join(h.dir, "lab", primary) + "' | head -n 1)/cmdline > mine/keeper")
	}
	for line := range strings.Lines(text) {
		name, _, ok := strings.Cut(line, "=")
		if value := h.values[name]; ok && value != "" {
			h.prelude += name + "=" + value + "\n"
		} else {
			h.t.Fatalf("no value for %q", line)
		}
	}
	return h.prelude
}
