// Package boottime reads CLOCK_BOOTTIME, the clock on which every lease and fence deadline of Coterie is counted.
//
// Go's monotonic clock is CLOCK_MONOTONIC, which stands still while the machine is suspended; a primary that slept through
// its lease would wake up believing in it. CLOCK_BOOTTIME goes on (clock_gettime(2)). Wall time never decides anything here.
package boottime

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Now returns the time since boot, suspension included. It panics if the kernel lacks the clock (Linux before 2.6.39),
// because a node that cannot read it cannot hold a lease safely.
func Now() time.Duration {
	if now := replaced.Load(); now != nil {
		return (*now)()
	}
	var ts unix.Timespec
	// Raw: it never blocks, and an announced system call of an idle process wakes the runtime's monitor thread, a hundred times a second.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // ts outlives the call
	if errno != 0 {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", errno))
	}
	return time.Duration(ts.Nano())
}

// Until returns how long it is until the instant t of this clock; negative when t has passed.
func Until(t time.Duration) time.Duration { return t - Now() }
