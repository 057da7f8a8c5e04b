package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// Layout is where things are in a node directory and in its run directory.
type Layout struct {
	Dir string // the node directory
	Run string // private directory of its sockets; short, because a socket path may have 107 bytes
}

// NewLayout finds both directories for a node directory. The run directory's name follows from the node directory's path, so that
// every command finds the agent's socket without being told.
func NewLayout(dir string) (Layout, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Layout{}, fmt.Errorf("node directory: %w", err)
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	sum := sha256.Sum256([]byte(abs))
	id := hex.EncodeToString(sum[:4])
	uid := os.Getuid()
	if st, err := os.Stat(abs); err == nil { // root asks about a node that another user runs
		uid = int(st.Sys().(*syscall.Stat_t).Uid)
	}
	return Layout{Dir: abs, Run: filepath.Join(runParent(uid), id)}, nil
}

// runParent is where a user's run directories are.
func runParent(uid int) string {
	if st, err := os.Stat("/run/coterie"); err == nil && int(st.Sys().(*syscall.Stat_t).Uid) == uid {
		return "/run/coterie"
	}
	return fmt.Sprintf("/tmp/coterie-%d", uid)
}

// Make creates the directories that a node needs, private to its user, and refuses one that belongs to somebody else.
func (l Layout) Make() error {
	for _, d := range []string{l.Dir, l.PKI(), l.State(), l.Log(), l.Forked(), filepath.Dir(l.Run), l.Run, l.Sockets(), l.Upstream()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
		st, err := os.Lstat(d)
		if err != nil {
			return err
		}
		if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != os.Getuid() || !st.IsDir() {
			return fmt.Errorf("%s belongs to user %d, not to %d who runs this node; remove it or run as its owner", d, owner, os.Getuid())
		}
	}
	return nil
}

// The places of a node.
func (l Layout) PKI() string        { return filepath.Join(l.Dir, "pki") }
func (l Layout) State() string      { return filepath.Join(l.Dir, "state") }
func (l Layout) Log() string        { return filepath.Join(l.Dir, "log") }
func (l Layout) Etcd() string       { return filepath.Join(l.Dir, "etcd") }
func (l Layout) Forked() string     { return filepath.Join(l.Dir, "forked") }
func (l Layout) Data() string       { return filepath.Join(l.Dir, "pgdata") }
func (l Layout) Sockets() string    { return filepath.Join(l.Run, "pg") }
func (l Layout) Upstream() string   { return filepath.Join(l.Run, "up") }
func (l Layout) AgentSock() string  { return filepath.Join(l.Run, "agent.sock") }
func (l Layout) KeeperSock() string { return filepath.Join(l.Run, "keeper.sock") }
func (l Layout) EtcdPeer() string   { return filepath.Join(l.Run, "etcd-peer.sock") }
func (l Layout) EtcdClient() string { return filepath.Join(l.Run, "etcd-client.sock") }
