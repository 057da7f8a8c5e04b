package seeding

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore asks which pages of the mapping m are in memory (mincore(2)).
func mincore(m, vec []byte) error {
	addr, out := unsafe.Pointer(unsafe.SliceData(m)), unsafe.Pointer(unsafe.SliceData(vec)) //nolint:gosec // x/sys/unix has no mincore
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(addr), uintptr(len(m)), uintptr(out))
	if errno != 0 {
		return errno
	}
	return nil
}
