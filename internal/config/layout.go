package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
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
	pruneRuns(filepath.Dir(l.Run), time.Now().Add(-runLife))
	if err := os.WriteFile(filepath.Join(l.Run, ownerFile), []byte(l.Dir), 0o600); err != nil {
		return fmt.Errorf("make %s: %w", l.Run, err)
	}
	return nil
}

// ownerFile says in a run directory which node directory it belongs to.
const ownerFile = "node"

// runLife is how long a run directory that says nothing of its node is left alone: its node may be about to start.
const runLife = time.Hour

// pruneRuns removes the run directories whose node directories are gone, as after a forced removal, and those, made before since,
// that hold no socket and do not say whose they are. One in which anything still listens stays, and so does what another user owns.
func pruneRuns(parent string, since time.Time) {
	runs, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, r := range runs {
		dir := filepath.Join(parent, r.Name())
		owner, err := os.ReadFile(filepath.Join(dir, ownerFile))
		switch {
		case !r.IsDir() || !runName.MatchString(r.Name()) || listening(dir):
			continue
		case err != nil || len(owner) == 0: // it may be about to be written
			st, err := r.Info()
			if err != nil || st.ModTime().After(since) || holdsFiles(dir) {
				continue
			}
		default:
			if _, err := os.Lstat(string(owner)); !errors.Is(err, os.ErrNotExist) { //nolint:gosec // asks only whether it is there
				continue
			}
		}
		_ = os.RemoveAll(dir) // what cannot be removed stays
	}
}

var runName = regexp.MustCompile(`^[0-9a-f]{8}$`)

// listening tells whether a process answers at a socket of the run directory.
func listening(dir string) bool {
	for _, pattern := range []string{"*.sock", "*/.s.PGSQL.5432"} {
		sockets, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return true
		}
		for _, s := range sockets {
			c, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "unix", s)
			if err == nil {
				_ = c.Close()
				return true
			}
		}
	}
	return false
}

// holdsFiles tells whether there is anything but empty directories.
func holdsFiles(dir string) bool {
	found := false
	err := filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			found = true
		}
		return err
	})
	return found || err != nil
}

// PKI is where its certificates and keys are.
func (l Layout) PKI() string { return filepath.Join(l.Dir, "pki") }

// State is where the agent's marks are.
func (l Layout) State() string { return filepath.Join(l.Dir, "state") }

// Log is where the logs are.
func (l Layout) Log() string { return filepath.Join(l.Dir, "log") }

// Etcd is where the quorum's member keeps its data.
func (l Layout) Etcd() string { return filepath.Join(l.Dir, "etcd") }

// Forked is where data that left the history is kept.
func (l Layout) Forked() string { return filepath.Join(l.Dir, "forked") }

// Data is where PostgreSQL's data is, unless it was adopted elsewhere.
func (l Layout) Data() string { return filepath.Join(l.Dir, "pgdata") }

// Sockets is the directory of PostgreSQL's private socket.
func (l Layout) Sockets() string { return filepath.Join(l.Run, "pg") }

// Upstream is the directory of the socket that leads a walreceiver to the primary.
func (l Layout) Upstream() string { return filepath.Join(l.Run, "up") }

// AgentSock is where the agent serves administrators.
func (l Layout) AgentSock() string { return filepath.Join(l.Run, "agent.sock") }

// KeeperSock is where the keeper serves the agent.
func (l Layout) KeeperSock() string { return filepath.Join(l.Run, "keeper.sock") }

// EtcdClient is where the quorum's member serves a person with etcdctl; the nodes need it not.
func (l Layout) EtcdClient() string { return filepath.Join(l.Run, "etcd-client.sock") }

// GroupFile holds the group's configuration as this node last saw it, so that a starting node knows its peers and trusts them.
func (l Layout) GroupFile() string { return filepath.Join(l.State(), "group.json") }

// FoundingFile holds the record that the first start of a new group's first node creates.
func (l Layout) FoundingFile() string { return filepath.Join(l.State(), "founding.json") }

// MemberMark exists where this node was a member of the embedded quorum.
func (l Layout) MemberMark() string { return filepath.Join(l.State(), "quorum.json") }

// ComebackFile exists where this member's quorum was lost and another one founded: votes are assigned anew when it arrives there.
func (l Layout) ComebackFile() string { return filepath.Join(l.State(), "comeback") }
