package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// reaperName is the name of the reaper among the helpers: the process that removes a bound lab when the lab's maker has
// ended. The reaper reads a pipe that only the maker writes to. So it notices any end of the maker, SIGKILL included.
const reaperName = "lab-reaper"

// leave is what the maker writes to keep its lab.
const leave = "leave"

// reaperLog is the reaper's output, in the lab's directory. It exists as long as the lab is bound.
const reaperLog = "reaper.log"

// lifeline ties a lab to the process that made it.
type lifeline struct {
	in    io.WriteCloser
	ended <-chan struct{} // closed when the reaper has ended
}

// bind starts the reaper in a session of its own, so that a signal to the maker's process group does not reach it.
func (l *Lab) bind() error {
	out, err := os.OpenFile(filepath.Join(l.dir, reaperLog), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd, err := l.helper(reaperName, labDir{l.dir}, out)
	if err != nil {
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the process that removes the lab if this one dies: %w", err)
	}
	ended := make(chan struct{})
	l.lifeline = &lifeline{in, ended}
	go func() { // returns when the reaper ends, which ends with the pipe
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// unbind unties the lab from this process: when the process ends, the lab stays as it is.
func (l *Lab) unbind() {
	if l.lifeline == nil {
		return
	}
	_ = os.Remove(filepath.Join(l.dir, reaperLog)) // it went with the directory if the lab was removed
	_, _ = io.WriteString(l.lifeline.in, leave)    // a reaper that has ended needs none
	_ = l.lifeline.in.Close()
	select {
	case <-l.lifeline.ended:
	case <-time.After(5 * time.Second): // the word was written
	}
	l.lifeline = nil
}

// dismiss ends the reaper of a lab that this process did not make and takes down.
func (l *Lab) dismiss() error {
	p, ok, err := reaperOf(l.dir)
	if !ok || p.pid == os.Getpid() {
		return err
	}
	return errors.Join(p.signal(syscall.SIGKILL), awaitGone([]process{p}, 5*time.Second))
}

// reaperOf finds the reaper of the lab in dir.
func reaperOf(dir string) (process, bool, error) {
	all, err := processes()
	i := slices.IndexFunc(all, func(p process) bool { return p.serves(reaperName, dir) })
	if i < 0 {
		return process{}, false, err
	}
	return all[i], true, nil
}

// reap reads from until it ends, and then takes the lab in dir down and removes it. It does nothing if it read leave,
// or if the lab no longer exists.
func reap(ctx context.Context, dir string, from io.Reader) error {
	mine, err := Open(dir)
	if err != nil {
		return err
	}
	end := make(chan string, 1)
	go func() { // returns when the maker ends
		said, _ := io.ReadAll(io.LimitReader(from, 1<<10)) // a broken pipe is an end, too
		end <- string(said)
	}()
	gone, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // returns when gone is done
		awaitEndOf(gone, filepath.Join(mine.dir, file))
		cancel()
	}()
	select {
	case <-gone.Done():
		return nil
	case said := <-end:
		if said == leave {
			return nil
		}
	}
	tries, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// The maker may have left something unfinished, and others may be at work. The error of the last attempt counts.
	_ = retry.Until(tries, 200*time.Millisecond, func() (bool, error) {
		var now *Lab
		now, err = Open(dir)
		if _, gone := os.Lstat(filepath.Join(mine.dir, file)); errors.Is(gone, os.ErrNotExist) {
			err = nil
			return true, nil
		}
		if err == nil && now.d.Password != mine.d.Password { // another lab was made there since
			return true, nil
		}
		if err == nil {
			err = now.Down(ctx)
		}
		return err == nil, nil
	})
	return err
}

// abandoned reports whether the lab's maker and its reaper both ended and left the lab behind. This happens when a
// machine stops or when all processes of a user are killed. A lab with a running node is not abandoned.
func (l *Lab) abandoned() (bool, error) {
	if _, err := os.Lstat(filepath.Join(l.dir, reaperLog)); err != nil {
		return false, nil // not bound: it was left on purpose, or made by coterie lab up
	}
	if _, bound, err := reaperOf(l.dir); bound || err != nil {
		return false, err
	}
	for _, n := range l.Nodes() {
		if t, err := l.find(n); err != nil || t.running() {
			return false, err
		}
	}
	return true, nil
}

// Maker returns the process with which the lab in dir ends, and its command line. ok is false if there is none.
func Maker(dir string) (pid int, command string, ok bool) {
	dir, err := realPath(dir)
	if err != nil {
		return 0, "", false
	}
	u, ok, err := reaperOf(dir)
	if err != nil || !ok {
		return 0, "", false
	}
	p, ok := readProcess(u.ppid)
	if !ok || p.pid == 1 { // the maker has died, and the lab is being taken down
		p = u
	}
	return p.pid, strings.Join(p.argv, " "), true
}
