package main

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// networkCapabilities are what virtual addresses need: to change the addresses of devices, and to tell the neighbours.
var networkCapabilities = []uint{unix.CAP_NET_ADMIN, unix.CAP_NET_RAW}

// keepNetworkCapabilities has this thread, which must be locked, keep the network capabilities when it stops being root's; raise makes
// them, and no others, those of the program that it executes next. Where root itself has them not, as in a container, nothing is kept,
// and nothing but virtual addresses is missing.
func keepNetworkCapabilities() (raise func() error, err error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var now [2]unix.CapUserData
	if err := unix.Capget(&hdr, &now[0]); err != nil {
		return nil, fmt.Errorf("read this process's capabilities: %w", err)
	}
	var kept uint32
	for _, c := range networkCapabilities {
		kept |= now[0].Permitted & (1 << c)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("keep capabilities: %w", err)
	}
	return func() error {
		set := [2]unix.CapUserData{{Effective: kept, Permitted: kept, Inheritable: kept}}
		if err := unix.Capset(&hdr, &set[0]); err != nil {
			return fmt.Errorf("keep the network capabilities: %w", err)
		}
		var errs []error
		for _, c := range networkCapabilities {
			if kept&(1<<c) != 0 {
				errs = append(errs, unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0))
			}
		}
		return errors.Join(errs...)
	}, nil
}
