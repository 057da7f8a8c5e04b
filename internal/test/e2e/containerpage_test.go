package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestContainerPage types the commands of the page to a stand-in for an engine, which gives each container processes, a
// network and mounts of its own: the image is not built. The group has the three nodes of the page, by their names.
func TestContainerPage(t *testing.T) {
	long(t)
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: networks and mounts of containers need root")
	}
	e := newEngine(t)
	var places []string
	for _, s := range steps(t, "../../../docs/how-to/container.md") {
		places = append(places, s.at)
		if s.at == "build" { // needs an engine
			continue
		}
		out, err := e.types(t, s.text)
		t.Logf("at %s:\n%s%s", s.at, s.text, out)
		if err != nil {
			t.Fatal(err)
		}
		switch s.at {
		case "first":
			e.until(t, "n1 is there", "podman exec n1 coterie status")
		case "join":
			e.until(t, "all are there", `podman exec n1 coterie status --json | grep -q '"automatic_failover": "ready'`)
		case "look":
			for _, name := range []string{"n1", "n2", "w"} {
				if !strings.Contains(out, name) {
					t.Errorf("no %s", name)
				}
			}
		}
	}
	if got := strings.Join(places, " "); got != "build first token join look" {
		t.Errorf("the page is typed at %q", got)
	}
	e.until(t, "n1 stops", "podman stop n1")
	e.until(t, "n2 leads", `podman exec n2 coterie status --json | grep -q '"primary": "n2"' && podman exec n2 coterie status`)
	e.until(t, "n1 starts", "podman start n1")
	e.until(t, "n1 follows", `podman exec n2 coterie status --json | grep -q '"automatic_failover": "ready'`)
	for _, name := range []string{"w", "n1", "n2"} {
		if out, err := e.types(t, "podman stop "+name); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
}

// engine is where testdata/podman keeps its containers.
type engine struct{ home, bin string }

func newEngine(t *testing.T) engine {
	t.Helper()
	home, err := os.MkdirTemp(root, "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o755); err != nil {
		t.Fatal(err)
	}
	e := engine{home, filepath.Join(home, "bin")}
	t.Cleanup(func() { reap(home) })
	for _, dir := range []string{e.bin, filepath.Join(home, "volumes")} {
		mkdir(t, dir)
	}
	for name, from := range map[string]string{"podman": "testdata/podman", "coterie-entrypoint": entrypoint, "coterie": exe} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(e.bin, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, file := range []string{"n1/outer", "n2/outer", "w/outer", "engine"} {
			if pid, err := strconv.Atoi(strings.TrimSpace(read(filepath.Join(home, file)))); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			if said := read(filepath.Join(home, filepath.Dir(file), "said")); t.Failed() {
				t.Logf("%s said:\n%s", filepath.Dir(file), said)
			}
		}
	})
	return e
}

// types runs a text in a shell whose engine this is.
func (e engine) types(t *testing.T, text string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", text)
	cmd.Dir, cmd.WaitDelay = e.home, time.Second
	cmd.Env = []string{"PATH=" + e.bin + ":" + os.Getenv("PATH"), "PODMAN=" + e.home, "HOME=" + e.home}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// until types a text until it succeeds.
func (e engine) until(t *testing.T, what, text string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		out, err := e.types(t, text)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v: %s", what, err, out)
		}
	}
}
