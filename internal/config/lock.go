package config

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Lock ensures that at most one agent runs for a node directory.
func Lock(l Layout) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(l.State(), "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the node directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("an agent already runs %s; see coterie status --node %s", l.Dir, l.Dir)
	}
	return func() { _ = f.Close() }, nil
}
