package daemon

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is by how much the kernel may let a timer of the agent run over (prctl(2), PR_SET_TIMERSLACK). An idle agent is woken a
// hundred times a second, and each time Go's monitor thread, which no program can reach, sleeps and wakes in steps of 20 µs until the
// others sleep again: a fifth of what the agent needs. With a millisecond of slack it wakes once. No deadline here is that near: the
// shortest interval is that of the heartbeats, 50 ms, and the keeper, which fences, does without (keeper.Spawn).
const timerSlack = time.Millisecond

// slackEnv marks, in the environment, a process that was executed for its slack.
const slackEnv = "COTERIE_SLACK_ASKED"

// reexec replaces this process, as syscall.Exec does, by one with slack. Only a new program has it in all of its threads.
func reexec(exe string, argv, env []string) error {
	runtime.LockOSThread() // the slack is the calling thread's, and so the new program's
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) // where it is refused, only processor time is lost
	return fmt.Errorf("run %s again: %w", exe, syscall.Exec(exe, argv, env))
}

// EnsureTimerSlack makes sure that this process has slack, executing it again if need be.
func EnsureTimerSlack() error {
	asked := os.Getenv(slackEnv) != ""
	now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if asked || err != nil || now == int(timerSlack) {
		return os.Unsetenv(slackEnv)
	}
	exe, err := os.Executable()
	return errors.Join(err, reexec(exe, os.Args, append(os.Environ(), slackEnv+"=1")))
}
