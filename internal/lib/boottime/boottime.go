// Package boottime reads CLOCK_BOOTTIME, the clock on which every lease and fence deadline of Coterie is counted.
//
// Go's monotonic clock is CLOCK_MONOTONIC, which stops while the machine is suspended; a primary that slept through its
// lease would still take it for valid. CLOCK_BOOTTIME continues (clock_gettime(2)). Wall time never decides anything
// here.
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
	// Raw: the call never blocks, and a regular system call of an idle process wakes the runtime's monitor thread, a
	// hundred times a second.
	_, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0) //nolint:gosec // ts outlives the call
	if errno != 0 {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", errno))
	}
	return time.Duration(ts.Nano())
}

// Until returns the time until the instant t of this clock; negative if t has passed.
func Until(t time.Duration) time.Duration { return t - Now() }

// UntilNext returns the time until the next instant that is a multiple of every. Timers that are set by it expire
// together, and one wake-up of an idle process serves them all. Where each had a phase of its own, each would wake
// threads of its own. The clock is that of timers, Awake, unless a test has replaced Now.
func UntilNext(every time.Duration) time.Duration {
	now := Awake()
	if other := replaced.Load(); other != nil {
		now = (*other)()
	}
	return every - (now%every+every)%every // a bubble of testing/synctest begins before Awake does
}
