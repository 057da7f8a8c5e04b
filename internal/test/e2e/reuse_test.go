package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestBackendReuse holds that one server process serves one client after the other in a real group, but not before the
// option is on, not across a failover, and not past a change of the role.
func TestBackendReuse(t *testing.T) {
	long(t)
	g := raise(t, lab.Options{Replicas: 2, Witness: true})
	sql(t, g.ReadWrite(), "create role app login password 'app'")
	app := strings.Replace(g.ReadWrite(), "://"+strings.SplitN(strings.SplitN(g.ReadWrite(), "://", 2)[1], "@", 2)[0]+"@", "://app:app@", 1)
	process := func() string {
		t.Helper()
		pid := sql(t, app, "select pg_backend_pid()::text")
		time.Sleep(100 * time.Millisecond) // it goes, or is made as new
		return pid
	}
	if first, second := process(), process(); first == second {
		t.Errorf("process %s served two clients, and nobody has allowed it", first)
	}
	g.says(t, "n1", fmt.Sprintf("ALTER AVAILABILITY GROUP [%s] SET (BACKEND_REUSE = ON)", strings.TrimSpace(groupName(t, g))))
	again := func(what string) string {
		t.Helper()
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
			if first := process(); first == process() {
				return first
			}
		}
		t.Fatalf("no process serves two clients, %s", what)
		return ""
	}
	was := again("though the option is on")
	sql(t, g.ReadWrite(), "alter role app set work_mem = '7MB'")
	if got := sql(t, app, "select pg_backend_pid()::text || ' ' || current_setting('work_mem')"); strings.HasPrefix(got, was+" ") || !strings.HasSuffix(got, "7MB") {
		t.Errorf("after a change of the role: %s, and before it was process %s", got, was)
	}
	again("after a change of the role")
	g.failover(t, "n2")
	g.ready(t)
	g.failover(t, "n1") // its listener is the first that clients ask
	g.ready(t)
	again("after two failovers")
}
