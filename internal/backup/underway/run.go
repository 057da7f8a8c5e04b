package underway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// The files of a node's directory of backups that tell of the run.
const (
	runFile = "run.json"
	runLock = "run.lock"
)

// maxFile bounds what is read of a file.
const maxFile = 64 << 10

// lockPatience is how long a lock is waited for: a process that looks at it holds it for a moment.
const lockPatience = 2 * time.Second

// Interrupted is the failure of a run whose process was ended before it could tell why.
const Interrupted = "the process that made the backup was ended: by a person, for want of memory, or because the agent that had started it stopped"

// Run is a backup that this process makes. Make it with Begin, and End it.
type Run struct {
	dir  string
	lock *os.File

	mu   sync.Mutex // guards the rest
	now  backup.Run
	told time.Time
}

// Begin notes in a node's directory of backups that one is made. It is refused while another process makes one there.
func Begin(dir string, r backup.Run) (*Run, error) {
	f, err := os.OpenFile(filepath.Join(dir, runLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("note the backup: %w", err)
	}
	if err := hold(f); err != nil {
		_ = f.Close()
		if now := Read(dir); errors.Is(err, unix.EWOULDBLOCK) && now.UnderWay() {
			return nil, fail.Unhealthyf("a backup is under way on this node (%s): one at a time is made of a group", now)
		}
		return nil, fmt.Errorf("note the backup: %w", err)
	}
	x := &Run{dir: dir, lock: f, now: r}
	if err := x.write(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("note the backup: %w", err)
	}
	return x, nil
}

// hold takes the lock of a file. It fails with EWOULDBLOCK if another process keeps it.
func hold(f *os.File) error {
	for end := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// held reports whether a process holds the lock of the file.
func held(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// Tell notes how far the run has come, at most twice a second.
func (r *Run) Tell(p backup.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Percent, r.now.Phase = p.Percent, p.Phase
	if time.Since(r.told) > 500*time.Millisecond {
		r.told = time.Now()
		_ = r.write() // the backup is worth more than the word of it
	}
}

// End notes how the run has ended, and releases what Begin took.
func (r *Run) End(made backup.Backup, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.End(time.Now().UTC(), made, err)
	_ = r.write()
	_ = r.lock.Close()
}

// write replaces the file of the run. It need not survive a power loss: the run does not.
func (r *Run) write() error {
	b, err := json.Marshal(r.now)
	if err != nil {
		return err
	}
	path := filepath.Join(r.dir, runFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Read returns the run that is under way in a node's directory of backups, or the last one; zero: none is known. One
// whose process was ended has failed.
func Read(dir string) (r backup.Run) {
	runs := held(filepath.Join(dir, runLock))
	if readJSON(filepath.Join(dir, runFile), &r) != nil {
		return backup.Run{}
	}
	if r.UnderWay() && !runs {
		var again backup.Run // it may have ended between the two looks
		if readJSON(filepath.Join(dir, runFile), &again) == nil && !again.UnderWay() {
			return again
		}
		r.End(r.Started, backup.Backup{}, fail.Unhealthyf("%s", Interrupted))
	}
	return r
}

// readJSON reads a small regular file.
func readJSON(path string, into any) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is no file of this program", path))
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, into)
}
