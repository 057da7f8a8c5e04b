package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/coteriedb/coterie/internal/lib/reexec"
)

// before is how a directory for a user was on the disk before it was made or given to that user.
type before struct {
	Dir  string
	Made []string // the directories that were missing, the deepest first; none if Dir was there
	Own  owned    // of Dir where it was there
}

// owned is a directory, and its owner and mode.
type owned struct {
	Dev, Ino uint64
	UID, GID int
	Mode     os.FileMode
}

// lookBefore looks at the place of a directory.
func lookBefore(dir string) (before, error) {
	b := before{Dir: dir}
	st, err := os.Stat(dir)
	if _, there := os.Lstat(dir); err != nil && there == nil { // a link to nothing
		return b, err
	}
	if err == nil {
		b.Own = ownership(st)
		return b, nil
	}
	for d := dir; errors.Is(err, os.ErrNotExist); _, err = os.Lstat(d) {
		b.Made = append(b.Made, d)
		d = filepath.Dir(d)
	}
	return b, err
}

func ownership(st os.FileInfo) owned {
	own := st.Sys().(*syscall.Stat_t)
	return owned{Dev: own.Dev, Ino: own.Ino, UID: int(own.Uid), GID: int(own.Gid), Mode: st.Mode().Perm()}
}

// makePrivate makes a directory that only its owner may enter, in parents that everybody may enter.
func makePrivate(dir string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.MkdirAll(dir, 0o700)) //nolint:gosec // its user must be able to enter the parents
}

// takeBack puts the disk back as it was, but for directories that are not empty by now.
func (b before) takeBack() {
	for _, d := range b.Made {
		_ = os.Remove(d)
	}
	if len(b.Made) == 0 && b.Own != (owned{}) {
		_ = b.Own.giveBack(b.Dir)
	}
}

// giveBack makes the owner and the mode of an empty directory what they were.
func (was owned) giveBack(dir string) error {
	f, err := openReal(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if is := ownership(st); is.Dev != was.Dev || is.Ino != was.Ino {
		return nil
	}
	if names, err := f.Readdirnames(1); len(names) > 0 || !errors.Is(err, io.EOF) {
		return err
	}
	return errors.Join(f.Chown(was.UID, was.GID), f.Chmod(was.Mode))
}

// MakeDirectory makes a directory for the user, with its parents, or gives it an empty one that is there. takeBack puts
// the disk back as it was, but for directories that are not empty by then. flag is the one that names the directory.
func MakeDirectory(dir string, u User, flag string) (takeBack func(), err error) {
	if err := reachable(dir, u.UID, u.GID, flag); err != nil {
		return nil, err
	}
	was, err := lookBefore(dir)
	if err != nil {
		return nil, err
	}
	if err = makePrivate(dir); err == nil {
		err = give(dir, u.UID, u.GID)
	}
	if err != nil {
		was.takeBack()
		return nil, fmt.Errorf("make %s for user %s: %w", dir, u.Name, err)
	}
	return was.takeBack, nil
}

// takerEnv names the process of root that takes a directory back, to the process that root becomes: the descriptors of
// its input and its output, and its number.
const takerEnv = "COTERIE_TAKE_BACK"

// takerName is the name of that process among the helpers.
const takerName = "take-back"

// TakeBackHelper is the process that takes back what root made for a command, once the command is done or gone. Only
// root can: the parent of a node directory is not the server's user's.
func TakeBackHelper() (string, reexec.Helper) {
	return takerName, reexec.Typed(func(_ context.Context, b before, s reexec.Streams) error {
		_, _ = io.Copy(io.Discard, s.In) // ends by TakeBack, or with the command
		b.takeBack()
		return nil
	})
}

// leave starts the helper, for the process that this one becomes. It returns what that process needs in its
// environment. Nothing is started for a node that is there: nothing of it is taken back.
func (b before) leave() (env []string, err error) {
	if entries, err := os.ReadDir(b.Dir); err != nil || len(entries) > 0 {
		return nil, err
	}
	cmd, err := reexec.Spec{Name: takerName, Config: b}.Command(context.Background())
	if err != nil {
		return nil, err
	}
	in, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = in.Close() }()
	ended, out, err := os.Pipe()
	if err != nil {
		_ = tell.Close()
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd.Stdin, cmd.Stdout = in, out
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, tell.Close(), ended.Close())
	}
	text := takerEnv + "="
	for _, f := range []*os.File{tell, ended} {
		fd, err := syscall.Dup(int(f.Fd())) // one that the next program gets
		if err != nil {
			return nil, err
		}
		text += strconv.Itoa(fd) + " "
	}
	return []string{text + strconv.Itoa(cmd.Process.Pid)}, nil
}

// taker returns what the environment says of the helper. It reports false where there is none.
func taker() (tell, ended, pid int, ok bool) {
	_, err := fmt.Sscan(os.Getenv(takerEnv), &tell, &ended, &pid)
	return tell, ended, pid, err == nil
}

// hideTaker keeps the descriptors of the helper from the programs that this process executes.
func hideTaker() {
	if tell, ended, _, ok := taker(); ok {
		syscall.CloseOnExec(tell)
		syscall.CloseOnExec(ended)
	}
}

// TakeBack takes back what root made for this process, if it is empty: the node directory of a command that was
// refused, and its parents. Call it when the command has made the node, or has not; it does nothing where nothing is to
// be taken back.
func TakeBack() {
	tell, ended, pid, ok := taker()
	_ = os.Unsetenv(takerEnv)
	if !ok {
		return
	}
	_ = syscall.Close(tell)
	for b := make([]byte, 1); ; { // it says nothing, and ends
		if _, err := syscall.Read(ended, b); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	_ = syscall.Close(ended)
	var status syscall.WaitStatus
	_, _ = syscall.Wait4(pid, &status, 0, nil)
}
