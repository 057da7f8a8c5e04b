package daemon

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// networkCapabilities are the capabilities for virtual addresses (changing the addresses of devices and announcing them
// to neighbours) and for the kernel path, on which the kernel forwards simple requests of a session.
var networkCapabilities = []uint{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_PERFMON}

// keepNetworkCapabilities makes this thread keep the network capabilities when it gives up root. The thread must be
// locked. raise gives these capabilities, and no others, to the program that the thread executes next. Root may lack
// them, as in a container. Then they are not kept, and only virtual addresses and the kernel path are unavailable.
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
