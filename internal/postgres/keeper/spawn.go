package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/rotating"
	"github.com/coteriedb/coterie/internal/lib/sdnotify"
)

// Spawn makes sure that a keeper serves runDir. If none answers it starts `exe keeper` for nodeDir in a session of its
// own, with NODE/log/keeper.log as its log, and waits until the socket answers. The keeper outlives the caller. A
// goroutine collects it if it ends earlier.
func Spawn(ctx context.Context, exe, nodeDir, runDir string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	socket := filepath.Join(runDir, SocketName)
	if answers(ctx, socket) == nil {
		return nil
	}
	ended, err := spawn(exe, nodeDir, runDir)
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	for {
		err := answers(ctx, socket)
		if err == nil {
			return nil
		}
		select {
		case exit := <-ended:
			// Another agent's Spawn may have been faster: then its keeper holds the lock and this one has ended.
			if exit == exitRefused && answers(ctx, socket) == nil {
				return nil
			}
			if exit == exitRefused && ctx.Err() == nil {
				ended = nil // the other one is still cleaning up
				continue
			}
			return fmt.Errorf("the keeper ended with exit status %d; see %s", exit, filepath.Join(nodeDir, "log", "keeper.log"))
		case <-ctx.Done():
			return fmt.Errorf("wait for the keeper: %w", errors.Join(ctx.Err(), err))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func answers(ctx context.Context, socket string) error {
	c, _, err := Dial(ctx, socket, "")
	if err != nil {
		return err
	}
	return c.Close()
}

func spawn(exe, nodeDir, runDir string) (<-chan int, error) {
	exe, err1 := filepath.Abs(exe)
	nodeDir, err2 := filepath.Abs(nodeDir)
	runDir, err3 := filepath.Abs(runDir)
	if err := errors.Join(err1, err2, err3, os.MkdirAll(filepath.Join(nodeDir, "log"), 0o700)); err != nil {
		return nil, err
	}
	rotating.ShiftLarge(filepath.Join(nodeDir, "log", "keeper.log")) // a keeper writes a few lines for each start
	log, err := os.OpenFile(filepath.Join(nodeDir, "log", "keeper.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(exe, "keeper", "--dir", nodeDir, "--run", runDir) //nolint:noctx // it must outlive every context of ours
	cmd.Dir, cmd.Env = "/", sdnotify.Without(os.Environ())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := startPunctually(cmd); err != nil {
		return nil, err
	}
	ended := make(chan int, 1)
	go func() {
		_ = cmd.Wait()
		ended <- cmd.ProcessState.ExitCode()
	}()
	return ended, nil
}

// defaultSlack is the kernel's own timer slack.
const defaultSlack = 50 * time.Microsecond

// startPunctually starts a process without capabilities and with the kernel's default timer slack, independent of the
// caller's. A process inherits the slack of the thread that creates it, and passes it on to the server.
func startPunctually(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && own > int(defaultSlack) {
		if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(defaultSlack), 0, 0, 0); err == nil {
			defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(own), 0, 0, 0) }()
		}
	}
	defer withoutCapabilities()()
	return cmd.Start()
}

// withoutCapabilities removes from the calling thread, which must be locked, the capabilities that its programs would
// inherit, and returns a function that restores them. The agent may have capabilities for its network, and no server
// needs them.
func withoutCapabilities() (back func()) {
	var had []uintptr
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if is, err := unix.PrctlRetInt(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, c, 0, 0); err == nil && is == 1 {
			had = append(had, c)
		}
	}
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // a kernel without ambient capabilities passes none on
	return func() {
		for _, c := range had {
			_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0)
		}
	}
}
