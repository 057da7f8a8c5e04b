package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab/faultfs"
	"github.com/coteriedb/coterie/internal/test/ports"
)

// breakIt is the page that this test reads.
const breakIt = "docs/tutorials/break-it.md"

// conditions are the results that the page promises, as shell conditions. P is the node that was broken.
var conditions = map[string]string{
	"another primary takes writes": `n=$(its primary); test -n "$n" && test "$n" != "$P"`,
	"every replica is synchronized": `s=$(coterie lab status --json); test -n "$(its primary)" &&
		test "$(echo "$s" | grep -c '"synchronization_state": "SYNCHRONIZED"')" = 3 &&
		test "$(echo "$s" | grep -c '"connected_state": "CONNECTED"')" = 3`,
	"the copy is quarantined":              `coterie lab status | grep -q quarantined`,
	"the mirror is degraded":               `coterie status --node "$(its dir)/n2" | grep -q "is degraded"`,
	"the mirror is whole":                  `! coterie status --node "$(its dir)/n2" | grep -q "mirror under"`,
	"the wait is cancelled":                `grep -q WARNING waited`,
	"the cancelled commit is acknowledged": `grep -q INSERT waited`,
}

var (
	see    = regexp.MustCompile(`^#see within (\d+)s: (.*)$`)
	lookup = regexp.MustCompile(`(?m)^its\(\) .*$`)
)

// block is one code block of the page.
type block struct{ kind, text string }

func breakPage(t *testing.T) []block {
	t.Helper()
	return blocksOf(t, pages(t)[breakIt])
}

// blocksOf returns the blocks of a text for the shell, and statements as the kind "sql". One without a mark is output,
// and is not run.
func blocksOf(t *testing.T, text string) []block {
	t.Helper()
	var blocks []block
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		kind, isShell := strings.CutPrefix(m[1], "sh ")
		switch {
		case isShell:
			blocks = append(blocks, block{kind, m[2]})
		case m[1] == "sql":
			blocks = append(blocks, block{m[1], m[2]})
		case strings.HasPrefix(m[1], "sql "): // by psql
			blocks = append(blocks, block{strings.TrimPrefix(m[1], "sql "), m[2]})
		case m[1] != "":
			t.Fatalf("a block of the page is marked %q and would not be run", m[1])
		}
	}
	return blocks
}

// script makes a block that a shell can run: an expected result becomes a wait that fails.
func script(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		m := see.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "#see") {
				t.Fatalf("the page says %q, which this test cannot read", line)
			}
			out.WriteString(line + "\n")
			continue
		}
		condition, ok := conditions[m[2]]
		if !ok {
			t.Fatalf("the page says that one must see %q, which this test cannot look for", m[2])
		}
		seconds, _ := strconv.Atoi(m[1])
		fmt.Fprintf(&out, "k=0; until { %s; }; do k=$((k+1)); if test $k -gt %d; then echo 'not seen within %s s: %s'; coterie lab status; exit 1; fi; sleep 0.2; done\n",
			condition, seconds*5, m[1], m[2])
		fmt.Fprintf(&out, "echo \"seen: %s; the primary is $(its primary)\"\n", m[2])
	}
	return out.String()
}

// The page is checked at every run, so that a mistake shows before the long one.
func TestBreakItYourselfCanBeRead(t *testing.T) {
	kinds := map[string]int{}
	for _, b := range breakPage(t) {
		kinds[b.kind]++
		cmd := exec.CommandContext(t.Context(), "sh", "-n")
		cmd.Stdin = strings.NewReader(script(t, b.text))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("a block that the shell does not understand: %v\n%s\n%s", err, out, b.text)
		}
	}
	if kinds["break"] != 4 || kinds["break-root"] != 2 || kinds["root"] != 1 || kinds["user"] != 1 || kinds["client"] != 1 || kinds["check"] != 1 || len(kinds) != 6 {
		t.Errorf("blocks of the page: %v", kinds)
	}
}

// TestBreakItYourself runs the steps of the page, with a lab in a directory and on ports of its own.
func TestBreakItYourself(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("breaks a lab in six ways; COTERIE_LONG=1 runs it")
	}
	root := os.Geteuid() == 0 && faultfs.Possible() == nil
	if !root {
		t.Log("NOT RUN: 5 and 6 of the page, which need root and FUSE")
	}
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("psql is not installed")
	}
	r := newReader(t)
	var check string
	for _, b := range breakPage(t) {
		if b.kind == "check" {
			check = b.text
		}
	}
	told := 0
	for i, b := range breakPage(t) {
		switch b.kind {
		case "client":
			r.prelude = lookup.FindString(b.text)
			r.background(b.text)
			told = r.awaitAcknowledged(told) // a reader would see its first rows before he breaks anything
			continue
		case "check":
			continue
		case "root", "break-root":
			if !root {
				continue
			}
		case "user":
			if root {
				continue
			}
		}
		start := time.Now()
		t.Logf("block %d:\n%s%s(%v)", i, b.text, r.run(script(t, b.text)), time.Since(start).Round(100*time.Millisecond))
		if r.prelude == "" {
			continue // the client has not begun
		}
		told = r.awaitAcknowledged(told)
		if lost := r.run(check); strings.TrimSpace(lost) != "" {
			t.Fatalf("rows that were acknowledged and are not there:\n%s", lost)
		}
	}
	t.Logf("%d rows acknowledged, all of them there", told)
}

// reader is a person who follows the page.
type reader struct {
	t       *testing.T
	dir     string // where the terminals are
	env     []string
	prelude string
}

func newReader(t *testing.T) *reader {
	t.Helper()
	bin := program(t)
	dir, err := os.MkdirTemp("", "coterie-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // user postgres runs servers below it
		t.Fatal(err)
	}
	lab := filepath.Join(dir, "lab")
	wrapper := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in\n\"lab up\"*netns*) ;;\n\"lab up\"*) shift 2; exec %[1]s lab up --dir %[2]s --port %[3]d \"$@\" ;;\nesac\n"+
		"case $1 in lab) verb=$2; shift 2; exec %[1]s lab \"$verb\" --dir %[2]s \"$@\" ;; esac\nexec %[1]s \"$@\"\n", bin, lab, ports.Range(t, 50))
	path := filepath.Join(dir, "path")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "coterie"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if t.Failed() {
			out, _ := exec.CommandContext(ctx, bin, "lab", "logs", "--lines", "40", "--dir", lab).CombinedOutput()
			t.Logf("what the nodes logged last:\n%s", out)
		}
		if _, err := os.Stat(lab); os.IsNotExist(err) {
			return // the page took it down
		}
		if out, err := exec.CommandContext(ctx, bin, "lab", "down", "--dir", lab).CombinedOutput(); err != nil {
			t.Errorf("lab down: %v\n%s", err, out)
		}
	})
	return &reader{t: t, dir: dir, env: append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), "LC_ALL=C")}
}

func (r *reader) shell(ctx context.Context, text string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", r.prelude+"\n"+text)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd
}

func (r *reader) run(text string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Minute)
	defer cancel()
	// The lab's nodes keep their standard error open; a file, unlike a pipe, blocks no reader.
	f, err := os.CreateTemp(r.dir, "out-")
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	cmd := r.shell(ctx, "set -e\n"+text)
	cmd.Stdout, cmd.Stderr = f, f
	err = cmd.Run()
	out, readErr := os.ReadFile(f.Name())
	if err != nil || readErr != nil {
		r.t.Fatalf("%s\n%v %v\n%s", text, err, readErr, out)
	}
	return string(out)
}

// background runs the client until the test ends.
func (r *reader) background(text string) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := r.shell(ctx, text)
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { cancel(); _ = cmd.Wait() })
}

// awaitAcknowledged waits until more rows than that have been acknowledged to the client.
func (r *reader) awaitAcknowledged(than int) int {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		b, _ := os.ReadFile(filepath.Join(r.dir, "acked"))
		if n := strings.Count(string(b), "\n"); n > than+3 {
			return n
		}
	}
	r.t.Fatalf("no row was acknowledged to the client after the first %d", than)
	return 0
}
