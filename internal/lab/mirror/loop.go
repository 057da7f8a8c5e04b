package mirror

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// attempts bounds the tries to get a free loop device, which others want as well.
const attempts = 50

// attach gives a file a loop device, which frees itself when nothing holds it open any more, the returned file
// included.
func attach(path string) (*os.File, error) {
	back, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = back.Close() }()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = control.Close() }()
	for range attempts {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("get a loop device: %w", err)
		}
		f, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(back.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(f.Fd()), &c)
		if err == nil {
			return f, nil
		}
		_ = f.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to /dev/loop%d: %w", path, n, err)
		}
	}
	return nil, fmt.Errorf("no loop device was free in %d attempts", attempts)
}

// deviceOf returns the loop device over a file.
func deviceOf(path string) (string, error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", err
	}
	for _, f := range all {
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) == path {
			return "/dev/" + strings.Split(f, "/")[3], nil
		}
	}
	return "", fmt.Errorf("no loop device is over %s", path)
}

// lost reports whether a device has been taken away by resize.
func lost(dev string) bool {
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(dev), "size"))
	return err != nil || strings.TrimSpace(string(b)) == "1"
}

// resize shows only the first bytes of a device; 0: all.
func resize(dev string, limit uint64) error {
	f, err := os.OpenFile(dev, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := unix.IoctlLoopGetStatus64(int(f.Fd()))
	if err != nil {
		return err
	}
	info.Sizelimit = limit
	if err := unix.IoctlLoopSetStatus64(int(f.Fd()), info); err != nil {
		return fmt.Errorf("change the size of %s: %w", dev, err)
	}
	return unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_CAPACITY, 0)
}
