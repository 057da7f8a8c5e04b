package storage

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	btrfsDevInfo = 0xd000941e // BTRFS_IOC_DEV_INFO
	noCow        = 0x00800000 // FS_NOCOW_FL
	maxDevID     = 256
)

// btrfsDevInfoArgs is struct btrfs_ioctl_dev_info_args.
type btrfsDevInfoArgs struct {
	devid      uint64
	uuid       [16]byte
	used, size uint64
	_          [3032]byte
	path       [1024]byte
}

// btrfsNames returns the paths of the devices of a mounted file system, by their ids. It is empty where the kernel
// cannot be asked, as in a test.
func (r *Reader) btrfsNames(at string) map[string]string {
	out := map[string]string{}
	if r.Root != "" {
		return out
	}
	f, err := os.Open(at)
	if err != nil {
		return out
	}
	defer func() { _ = f.Close() }()
	for id := range uint64(maxDevID) {
		a := btrfsDevInfoArgs{devid: id}
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), btrfsDevInfo, uintptr(unsafe.Pointer(&a))); e != 0 { //nolint:gosec // the struct is the kernel's
			continue
		}
		if p := unix.ByteSliceToString(a.path[:]); p != "" {
			out[strconv.FormatUint(id, 10)] = p
		}
	}
	return out
}

// uncheckedDir reports whether files that are made in a directory have no checksums, by chattr +C.
func uncheckedDir(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return err == nil && flags&noCow != 0
}

func privileged() bool { return os.Geteuid() == 0 }
