package node

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/daemon"
)

// partsBudget is how long what this agent serves may take to say goodbye before it gives way to its successor: a primary's keeper
// waits for that one already.
const partsBudget = 300 * time.Millisecond

func awaitBriefly(running *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }() // ends with the process, which is about to be replaced
	select {
	case <-done:
	case <-time.After(partsBudget):
	}
}

// succeed replaces this process by a new one of the program as it is on disk now: the same process id, so that whoever started it
// notices nothing, and nothing inherited but the standard streams. The quorum member is not stopped in order, which its log is made
// for. It returns only if that fails.
func (n *node) succeed() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	n.log.Info("agent restarts in place", "program", exe)
	return daemon.Exec(exe, os.Args, os.Environ())
}

// Restart has the agent replace itself.
func (m *admin) Restart(ctx context.Context, req api.RestartRequest) error {
	if m.n.pg == nil {
		return api.Refused("a witness has no server to keep running; restart it with its service unit")
	}
	if err := m.n.agent.Restart(ctx, agent.RestartOptions{Drain: req.Drain, Cut: req.Cut}); err != nil {
		return api.Unhealthy("not restarted, everything goes on as before: " + err.Error())
	}
	return nil
}
