package linkem

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of a port's thread do not tell Go's scheduler. An ordinary call gives away the right to run Go code, and to
// get it back the thread has to wait for a lock that threads without its priority hold: on a busy machine, for tens of
// milliseconds. Whoever has to stop all Go code interrupts these calls with a signal.

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
