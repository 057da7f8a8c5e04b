package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/node/events"
)

// TestCommandsForEvents puts a command into hooks.d of two nodes: it is told of a statement on the one and, when the
// primary dies, of the takeover on the other. A command that never ends delays nothing.
func TestCommandsForEvents(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{})
	s := g.ready(t)
	out, err := os.MkdirTemp(root, "hooks")
	if err == nil {
		err = os.Chmod(out, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.Replicas {
		dir := filepath.Join(g.node(r.Name), "hooks.d")
		mkdir(t, dir)
		for name, text := range map[string]string{"10-keep": "{ cat; echo; } >> " + filepath.Join(out, r.Name), "20-hangs": "exec sleep 1000"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		must(t, "restart", "--node", g.node(r.Name))
	}
	s = g.ready(t)
	told := func(node, kind, what string) {
		g.await(t, node+" to tell of "+what, func(lab.Status) bool {
			b, _ := os.ReadFile(filepath.Join(out, node))
			for line := range strings.Lines(string(b)) {
				var e events.Event
				if json.Unmarshal([]byte(line), &e) == nil && e.Kind == kind && e.Node == node && e.Group == "lab" && strings.Contains(e.What, what) {
					return true
				}
			}
			return false
		})
	}
	must(t, "sql", "--node", g.node(*s.Primary), "-c", "ALTER AVAILABILITY GROUP lab SET (DB_FAILOVER = OFF)")
	told(*s.Primary, "statement", "DB_FAILOVER = OFF")
	found := must(t, "check", "security", "--node", g.node(*s.Primary))
	if !strings.Contains(found.out, "10-keep, 20-hangs") {
		t.Errorf("coterie check security does not list the commands: %s", found.out)
	}
	g.kill(t, *s.Primary)
	now := g.newPrimary(t, s)
	told(*now.Primary, "leadership", "")
	g.down(t)
}
