package node

import (
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/capabilities"
)

// partsBudget is how long the parts of this agent may take to end before its successor replaces it: a primary's keeper
// waits for that one already.
const partsBudget = 300 * time.Millisecond

func waitAtMost(running *sync.WaitGroup) {
	done := make(chan struct{})
	go func() { running.Wait(); close(done) }() // ends with the process, which is about to be replaced
	select {
	case <-done:
	case <-time.After(partsBudget):
	}
}

// reexec replaces this process by a new one of the program as it is on disk now. The process id stays, so its parent
// notices nothing. Only the standard streams are inherited. The quorum member is not stopped in order; its log is made
// for that. reexec returns only if it fails.
func (n *node) reexec() error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	n.log.Info("agent restarts in place", "program", exe)
	return capabilities.Exec(exe, successorArgs(os.Args, n.layout.Dir), os.Environ())
}

// successorArgs returns the command line of the agent's successor. An agent that init or join started in the foreground
// is followed by coterie agent: the node directory exists already.
func successorArgs(args []string, dir string) []string {
	if len(args) < 2 || commandOf(args[1:]) == "agent" {
		return args
	}
	return []string{args[0], "agent", "--node", dir}
}

// commandOf returns the first argument that is neither a flag nor the node directory, which may come before the
// command.
func commandOf(args []string) string {
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--node":
			i++
		case !strings.HasPrefix(args[i], "-"):
			return args[i]
		}
	}
	return ""
}
