package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
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

// Place identifies a node directory on a running machine: its file and the machine's boot. The lock of the directory
// keeps two agents from running in one place. A copy of the directory is in another place, on the same machine, too,
// as is a directory that was moved or whose machine was started again.
func Place(l Layout) string {
	var st syscall.Stat_t
	if err := syscall.Stat(l.State(), &st); err != nil {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		host, _ := os.Hostname()
		boot = []byte(host)
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", bytes.TrimSpace(boot), st.Dev, st.Ino))
	return hex.EncodeToString(sum[:8])
}
