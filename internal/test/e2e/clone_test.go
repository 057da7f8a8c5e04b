package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndClone starts a copy of the directory of a node that lives. The copy ends and says what to do; the node
// does not notice, and the group survives the death of its primary afterwards.
func TestEndToEndClone(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	was := g.ready(t)
	x := secondaries(was)[0]
	clone := filepath.Join(filepath.Dir(g.Dir()), "clone")
	g.kill(t, x) // a copy of files that change is none
	run1(t, "cp", "-a", g.node(x), clone)
	facts := filepath.Join(clone, "coterie.yaml") // as on another machine: other addresses
	text, err := os.ReadFile(facts)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(strings.ReplaceAll(string(text), g.node(x), clone), "127.0.0.1", "127.0.0.2")
	if err := os.WriteFile(facts, []byte(edited), 0o600); err != nil {
		t.Fatal(err)
	}
	g.start(t, x)
	g.back(t, x)
	g.acknowledged(t, 50)
	started := g.askPrivately(t, x, "select pg_postmaster_start_time()")

	out := filepath.Join(clone, "log", "agent.log")
	mark := size(out)
	agent := exec.CommandContext(t.Context(), exe, "agent", "--node", clone)
	agent.Dir = "/"
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the clone ended without an error")
		}
	case <-time.After(patience):
		_ = agent.Process.Kill()
		t.Fatalf("the clone runs after %v", patience)
	}
	log, _ := os.ReadFile(out)
	if said := lastLine(string(log[min(mark, len(log)):])); !strings.Contains(said, "this node directory is a copy") {
		t.Errorf("the clone said: %s", said)
	}
	if now := g.askPrivately(t, x, "select pg_postmaster_start_time()"); now != started {
		t.Errorf("the server of %s was started again", x)
	}
	g.acknowledged(t, 50)
	g.ready(t)
	g.kill(t, *was.Primary)
	g.newPrimary(t, was)
	g.acknowledged(t, 50)
	g.revive(t, *was.Primary)
	g.down(t)
}

// size returns how long a file is; 0 if there is none.
func size(file string) int {
	info, err := os.Stat(file)
	if err != nil {
		return 0
	}
	return int(info.Size())
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
