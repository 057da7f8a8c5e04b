package daemon

import (
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/capabilities"
)

// timerSlack is the delay that the kernel may add to a timer of the agent (prctl(2), PR_SET_TIMERSLACK). An idle agent
// wakes a hundred times a second. Each time Go's monitor thread, which no program can control, also wakes and sleeps in
// steps of 20 µs until the other threads sleep again. That is a fifth of the agent's processor time. With a millisecond
// of slack the thread wakes once. No deadline of the agent is that short: the shortest interval is that of the
// heartbeats, 50 ms. The keeper, which fences, runs without slack (keeper.Spawn).
const timerSlack = time.Millisecond

// slackEnv is the environment variable that marks a process which was executed again for its slack.
const slackEnv = "COTERIE_SLACK_ASKED"

// execute replaces this process, as capabilities.Exec does, by one with timer slack. Only a new program has the slack
// in all of its threads.
func execute(exe string, argv, env []string) error {
	runtime.LockOSThread() // the new program inherits the slack of the calling thread
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) // a refusal costs only processor time
	return capabilities.Exec(exe, argv, env)
}

// EnsureTimerSlack executes this process again if it lacks the timer slack. It returns if the process has the slack or
// cannot get it. A program file that cannot be executed any more, as after an update, costs processor time and is no
// error.
func EnsureTimerSlack() error {
	asked := os.Getenv(slackEnv) != ""
	now, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if asked || err != nil || now == int(timerSlack) {
		return os.Unsetenv(slackEnv)
	}
	if exe, err := os.Executable(); err == nil {
		_ = execute(exe, os.Args, append(os.Environ(), slackEnv+"=1"))
	}
	return nil
}
