package capabilities

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// capabilitySet is a process's set of capabilities as capget(2) returns it.
type capabilitySet [2]unix.CapUserData

// withheld is the set that Withhold took from the programs that this process executes. It is nil before.
var withheld atomic.Pointer[[2]uint32]

// Withhold takes this process's inheritable and ambient capabilities away, on all of its threads. The process itself
// keeps its permitted and effective capabilities. No program that it executes gets any, except one that Exec executes.
// Without this call each program that a node runs, from postgres to pg_rewind, would get the agent's capabilities, and
// a role that may run programs on the server could choose such a program.
//
// main calls it once, before anything is executed. Root's programs have root's capabilities, so nothing is done there.
// In a binary that is linked with C, as one with the race detector is, Go cannot change all threads: a note on standard
// error says so. Released binaries are not linked with C.
func Withhold() error {
	if os.Getuid() == 0 {
		return nil
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var set capabilitySet
	if err := unix.Capget(&hdr, &set[0]); err != nil {
		return fmt.Errorf("read this process's capabilities: %w", err)
	}
	had := [2]uint32{set[0].Inheritable, set[1].Inheritable}
	if had == ([2]uint32{}) {
		return nil // the ambient set is a part of the inheritable one
	}
	set[0].Inheritable, set[1].Inheritable = 0, 0
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&set[0])), 0) //nolint:gosec // capset(2) takes pointers
	runtime.KeepAlive(&hdr)
	runtime.KeepAlive(&set)
	if errno == unix.ENOTSUP {
		fmt.Fprintln(os.Stderr, "this binary is linked with C: programs that it runs inherit its capabilities")
		return nil
	}
	if errno != 0 {
		return fmt.Errorf("withhold capabilities from the programs that this one executes: %w", errno)
	}
	withheld.Store(&had)
	return nil
}

// Exec replaces this process by the program, as syscall.Exec does, and gives it the capabilities that Withhold took
// away. Only the same program may be executed so. Exec returns only with an error.
func Exec(exe string, argv, env []string) error {
	if had := withheld.Load(); had != nil {
		runtime.LockOSThread() // the new program gets the capabilities of the thread that executes it
		defer runtime.UnlockOSThread()
		if err := passOn(*had); err != nil {
			return err
		}
	}
	err := syscall.Exec(exe, argv, env)
	if withheld.Load() != nil { // this thread's next program gets nothing
		err = errors.Join(err, passOn([2]uint32{}))
	}
	return fmt.Errorf("run %s again: %w", exe, err)
}

// passOn makes these capabilities inheritable and ambient for the calling thread, as far as they are permitted to it.
func passOn(capabilities [2]uint32) error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var set capabilitySet
	if err := unix.Capget(&hdr, &set[0]); err != nil {
		return fmt.Errorf("read this thread's capabilities: %w", err)
	}
	for i := range set {
		set[i].Inheritable = capabilities[i] & set[i].Permitted
	}
	if err := unix.Capset(&hdr, &set[0]); err != nil {
		return fmt.Errorf("make capabilities inheritable: %w", err)
	}
	var errs []error
	for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
		if set[c/32].Inheritable&(1<<(c%32)) != 0 {
			errs = append(errs, unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0))
		}
	}
	return errors.Join(errs...)
}
