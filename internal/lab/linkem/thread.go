package linkem

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// urgent gives this thread real-time priority, else a better share, and exact timers.
func urgent() error {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it timers are 50 µs late, which is a smaller evil
	if err := realTime(0, unix.SCHED_FLAG_RESET_ON_FORK); err != nil {
		return errors.Join(err, unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20))
	}
	return nil
}

func realTime(thread int, flags uint64) error {
	return unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1, Flags: flags}, 0)
}

// Dedicate gives all threads of this process, and those that they make, real-time priority. It is for a process that
// does nothing but serve a network. Go moves a port from thread to thread now and then, and none of these threads may
// wait for a processor. Child processes would inherit the priority.
func Dedicate() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return err
		}
		if err := realTime(id, 0); err != nil && !errors.Is(err, unix.ESRCH) { // ended meanwhile
			return fmt.Errorf("real-time priority: %w", err)
		}
	}
	return nil
}

// The system calls of a port's thread bypass Go's scheduler. An ordinary call gives up the right to run Go code. To get
// it back, the thread has to wait for a lock that threads without its priority hold, on a busy machine for tens of
// milliseconds. To stop all Go code, the runtime interrupts these calls with a signal.

func rawRead(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))) //nolint:gosec // see above
	return int(n), errno
}

func rawWrite(fd int, b []byte) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b))) //nolint:gosec // see above
	return errno
}

func rawPoll(fds *[2]unix.PollFd, timeout *unix.Timespec) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(fds)), uintptr(len(fds)), uintptr(unsafe.Pointer(timeout)), 0, 0, 0) //nolint:gosec // see above
	return int(n), errno
}
