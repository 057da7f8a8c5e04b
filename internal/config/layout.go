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

	"github.com/coteriedb/coterie/internal/lib/unixuser"
)

// Layout has the paths in a node directory and in its run directory.
type Layout struct {
	Dir string // the node directory
	Run string // private directory of its sockets; short, because the path of a socket has at most 107 bytes
}

// NewLayout returns the layout for a node directory. The name of the run directory is derived from the path of the node
// directory, so that every command finds the agent's socket.
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
	l := Layout{Dir: abs}
	l.Run = filepath.Join(runParent(l.Owner()), id)
	return l, nil
}

// Owner returns the id of the user that owns the node directory, and so runs the node. It is this process's user if the
// directory does not exist.
func (l Layout) Owner() int {
	if st, err := os.Stat(l.Dir); err == nil { // root may ask about a node of another user
		return int(st.Sys().(*syscall.Stat_t).Uid)
	}
	return os.Getuid()
}

// runParent returns the directory of a user's run directories.
func runParent(uid int) string {
	if st, err := os.Stat("/run/coterie"); err == nil && int(st.Sys().(*syscall.Stat_t).Uid) == uid {
		return "/run/coterie"
	}
	return fmt.Sprintf("/tmp/coterie-%d", uid)
}

// Make creates the directories of a node, private to its user. One that belongs to another user is an error.
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
			return fmt.Errorf("%s belongs to user %s, not to %s who runs this node; remove it or run as its owner", d, unixuser.Name(owner), unixuser.Name(os.Getuid()))
		}
	}
	pruneRuns(filepath.Dir(l.Run), time.Now().Add(-runLife))
	if err := os.WriteFile(filepath.Join(l.Run, ownerFile), []byte(l.Dir), 0o600); err != nil {
		return fmt.Errorf("make %s: %w", l.Run, err)
	}
	return nil
}

// ownerFile is the file of a run directory that names its node directory.
const ownerFile = "node"

// runLife is how long a run directory that does not name its node is kept: the node may be about to start.
const runLife = time.Hour

// pruneRuns removes run directories whose node directories do not exist, as after a forced removal. It also removes
// those from before since that contain no file and do not name their node. A directory in which a process listens
// stays, and so does one of another user.
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
		case err != nil || len(owner) == 0: // it may not be written yet
			st, err := r.Info()
			if err != nil || st.ModTime().After(since) || holdsFiles(dir) {
				continue
			}
		default:
			if _, err := os.Lstat(string(owner)); !errors.Is(err, os.ErrNotExist) {
				continue
			}
		}
		_ = os.RemoveAll(dir) // best effort
	}
}

var runName = regexp.MustCompile(`^[0-9a-f]{8}$`)

// Running reports whether a process of a node listens in the run directory, although the node directory may have been
// moved or removed. The text names the process for a message; "": it is not known.
func (l Layout) Running() (process string, runs bool) {
	for _, s := range []string{l.KeeperSock(), l.AgentSock()} {
		c, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "unix", s)
		if err != nil {
			continue
		}
		defer func() { _ = c.Close() }()
		raw, err := c.(*net.UnixConn).SyscallConn()
		if err != nil {
			return "", true
		}
		_ = raw.Control(func(fd uintptr) {
			if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil && cred.Pid > 0 {
				process = fmt.Sprintf(" (process %d)", cred.Pid)
			}
		})
		return process, true
	}
	return "", false
}

// listening reports whether a process accepts connections at a socket of the run directory.
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

// holdsFiles reports whether the directory contains anything but empty directories.
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

// PKI is the directory of certificates and keys.
func (l Layout) PKI() string { return filepath.Join(l.Dir, "pki") }

// State is the directory of the agent's marks.
func (l Layout) State() string { return filepath.Join(l.Dir, "state") }

// Log is the directory of the logs.
func (l Layout) Log() string { return filepath.Join(l.Dir, "log") }

// Etcd is the data directory of the quorum's member.
func (l Layout) Etcd() string { return filepath.Join(l.Dir, "etcd") }

// Hooks is the directory of the commands that are run for events. An administrator makes it.
func (l Layout) Hooks() string { return filepath.Join(l.Dir, "hooks.d") }

// Forked is the directory of data that diverged from the group's history.
func (l Layout) Forked() string { return filepath.Join(l.Dir, "forked") }

// Data is PostgreSQL's data directory, unless an existing cluster was adopted elsewhere.
func (l Layout) Data() string { return filepath.Join(l.Dir, "pgdata") }

// Backup is the directory of the plan of backups and of the configuration of their tool. It is there once backups are
// enabled.
func (l Layout) Backup() string { return filepath.Join(l.Dir, "backup") }

// Sockets is the directory of PostgreSQL's private socket.
func (l Layout) Sockets() string { return filepath.Join(l.Run, "pg") }

// Upstream is the directory of the socket through which a walreceiver reaches the primary.
func (l Layout) Upstream() string { return filepath.Join(l.Run, "up") }

// AgentSock is the socket on which the agent serves administrators.
func (l Layout) AgentSock() string { return filepath.Join(l.Run, "agent.sock") }

// KeeperSock is the socket on which the keeper serves the agent.
func (l Layout) KeeperSock() string { return filepath.Join(l.Run, "keeper.sock") }

// EtcdClient is the socket on which the quorum's member serves etcdctl. The nodes do not use it.
func (l Layout) EtcdClient() string { return filepath.Join(l.Run, "etcd-client.sock") }

// GroupFile holds the group's configuration as this node last saw it, so that a starting node knows its peers and
// trusts them.
func (l Layout) GroupFile() string { return filepath.Join(l.State(), "group.json") }

// FoundingFile holds the record that the first start of a new group's first node creates.
func (l Layout) FoundingFile() string { return filepath.Join(l.State(), "founding.json") }

// LeavingFile exists if this node leaves its group, or has left it. No agent starts then.
func (l Layout) LeavingFile() string { return filepath.Join(l.State(), "leaving.json") }

// CoverageFile holds what became known in the last week of the sessions of this node's listener.
func (l Layout) CoverageFile() string { return filepath.Join(l.State(), "coverage.json") }

// MajorFile holds the state of a major upgrade of PostgreSQL on this node.
func (l Layout) MajorFile() string { return filepath.Join(l.State(), "major.json") }

// MajorStop exists while an administrator wants that upgrade given up.
func (l Layout) MajorStop() string { return filepath.Join(l.State(), "major-stop") }

// MemberMark exists if this node was a member of the embedded quorum.
func (l Layout) MemberMark() string { return filepath.Join(l.State(), "quorum.json") }

// ComebackFile exists if this member's quorum was lost and another one founded. Votes are assigned anew when the member
// joins it.
func (l Layout) ComebackFile() string { return filepath.Join(l.State(), "comeback") }
