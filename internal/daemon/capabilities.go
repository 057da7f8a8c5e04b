package daemon

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// networkCapabilities are what virtual addresses need, to change the addresses of devices and to tell the neighbours, and what it takes to
// have the kernel pass on a session's plain requests by itself.
var networkCapabilities = []uint{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_PERFMON}

// keepNetworkCapabilities has this thread, which must be locked, keep the network capabilities when it stops being root's; raise makes
// them, and no others, those of the program that it executes next. Where root itself has them not, as in a container, nothing is kept,
// and nothing but virtual addresses and the kernel's path is missing.
func keepNetworkCapabilities() (raise func() error, err error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&hdr, &now[0]); err != nil {
		return nil, fmt.Errorf("read this process's capabilities: %w", err)
	}
	var kept [2]uint32
	for _, c := range networkCapabilities {
		kept[c/32] |= now[c/32].Permitted & (1 << (c % 32))
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("keep capabilities: %w", err)
	}
	return func() error {
		var set [2]unix.CapUserData
		for i, k := range kept {
			set[i] = unix.CapUserData{Effective: k, Permitted: k, Inheritable: k}
		}
		if err := unix.Capset(&hdr, &set[0]); err != nil {
			return fmt.Errorf("keep the network capabilities: %w", err)
		}
		var errs []error
		for _, c := range networkCapabilities {
			if kept[c/32]&(1<<(c%32)) != 0 {
				errs = append(errs, unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0))
			}
		}
		return errors.Join(errs...)
	}, nil
}
