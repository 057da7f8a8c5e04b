package keeper

import (
	"bytes"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSpawnedProcessKeepsItsTimersPunctual: the agent lets its own timers run over; the keeper it starts must not
// inherit that.
func TestSpawnedProcessKeepsItsTimersPunctual(t *testing.T) {
	runtime.LockOSThread() // for good: this thread, with its slack, ends with the test
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(time.Millisecond), 0, 0, 0); err != nil {
		t.Skip(err)
	}
	slack := func(start func(*exec.Cmd) error) string {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "cat", "/proc/self/timerslack_ns")
		cmd.Stdout = &out
		if err := start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Skip(err)
		}
		return strings.TrimSpace(out.String())
	}
	if got := slack((*exec.Cmd).Start); got != "1000000" {
		t.Fatalf("an ordinary child has slack %s: the test shows nothing", got)
	}
	if got := slack(startPunctually); got != "50000" {
		t.Fatalf("slack of a spawned process is %s ns", got)
	}
	if own, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || own != int(time.Millisecond) {
		t.Fatalf("own slack is now %d, %v", own, err)
	}
}

// TestKillsBecomeRarer: a process that the kernel holds cannot die, and asking it two hundred times a second costs a
// core's worth of /proc.
func TestKillsBecomeRarer(t *testing.T) {
	for lasted, want := range map[time.Duration]time.Duration{
		0: 5 * time.Millisecond, 40 * time.Millisecond: 5 * time.Millisecond, 2 * time.Second: 200 * time.Millisecond, time.Hour: time.Second,
	} {
		if got := killAgain(lasted); got != want {
			t.Errorf("after %v the next kill comes %v later, not %v", lasted, got, want)
		}
	}
}
