package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// UndertakerCommand is the hidden command that waits for the end of the process that made a bound lab: `coterie lab UndertakerCommand --dir
// DIR`. It reads a pipe that only that process writes to, so that it notices its end however that came, SIGKILL included.
const UndertakerCommand = "undertake"

// farewell is what a maker writes that leaves its lab to others.
const farewell = "leave"

// undertakerLog is in the lab's directory.
const undertakerLog = "undertaker.log"

// bond ties a lab to the process that made it.
type bond struct {
	in    io.WriteCloser
	ended <-chan struct{} // the undertaker has
}

// bind starts the undertaker, in a session of its own: what is sent to the maker's group of processes does not reach it.
func (l *Lab) bind() error {
	out, err := os.OpenFile(filepath.Join(l.dir, undertakerLog), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command(l.d.Exe, "lab", UndertakerCommand, "--dir", l.dir) //nolint:noctx // it outlives every context of ours
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start who removes the lab should this process die: %w", err)
	}
	ended := make(chan struct{})
	l.bond = &bond{in, ended}
	go func() { // ends with the undertaker, which ends with the pipe
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// unbind lets the lab live on, or lie where it is: nothing happens to it any more when this process ends.
func (l *Lab) unbind() {
	if l.bond == nil {
		return
	}
	_, _ = io.WriteString(l.bond.in, farewell) // an undertaker that is gone needs none
	_ = l.bond.in.Close()
	select {
	case <-l.bond.ended:
	case <-time.After(5 * time.Second): // it has been told
	}
	l.bond = nil
}

// dismiss ends the undertaker of a lab that this process did not make, and takes down.
func (l *Lab) dismiss() error {
	p, ok, err := undertakerOf(l.dir)
	if !ok || p.pid == os.Getpid() {
		return err
	}
	return errors.Join(p.signal(syscall.SIGKILL), awaitGone([]process{p}, 5*time.Second))
}

// undertakerOf finds the undertaker of the lab in dir.
func undertakerOf(dir string) (process, bool, error) {
	all, err := processes()
	i := slices.IndexFunc(all, func(p process) bool {
		return len(p.argv) > 2 && p.argv[1] == "lab" && p.argv[2] == UndertakerCommand && hasOption(p.argv, "--dir", dir)
	})
	if i < 0 {
		return process{}, false, err
	}
	return all[i], true, nil
}

// Undertake reads from until it ends, and then takes the lab in dir down and removes it, unless it was told farewell, or the lab is gone.
func Undertake(ctx context.Context, dir string, from io.Reader) error {
	mine, err := Open(dir)
	if err != nil {
		return err
	}
	end := make(chan string, 1)
	go func() { // ends with the maker, or with this process
		said, _ := io.ReadAll(io.LimitReader(from, 1<<10)) // a pipe that breaks has ended, too
		end <- string(said)
	}()
	gone, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with gone
		awaitEndOf(gone, filepath.Join(mine.dir, file))
		cancel()
	}()
	select {
	case <-gone.Done():
		return nil
	case said := <-end:
		if said == farewell {
			return nil
		}
	}
	for deadline := time.Now().Add(startTimeout); ; { // the maker may have been in the middle of something, and others be at work
		now, err := Open(dir)
		if _, gone := os.Lstat(filepath.Join(mine.dir, file)); errors.Is(gone, os.ErrNotExist) {
			return nil
		}
		if err == nil && now.d.Password != mine.d.Password { // another lab that was made there since
			return nil
		}
		if err == nil {
			err = now.Down(ctx)
		}
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// Maker names the process that the lab in dir ends with, and its command line; ok is false where none runs.
func Maker(dir string) (pid int, command string, ok bool) {
	dir, err := realPath(dir)
	if err != nil {
		return 0, "", false
	}
	u, ok, err := undertakerOf(dir)
	if err != nil || !ok {
		return 0, "", false
	}
	p, ok := readProcess(u.ppid)
	if !ok || p.pid == 1 { // it has died, and the lab is being taken down
		p = u
	}
	return p.pid, strings.Join(p.argv, " "), true
}
