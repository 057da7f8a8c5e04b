package faultfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Name is the type of the mounts as mountinfo shows it, after "fuse.".
const Name = "coterie-disk"

// Options describe what is shown where. All paths are absolute.
type Options struct {
	Below  string // the directory that holds the files
	Mount  string // the directory where they are shown
	Socket string // where faults are set
	UID    int    // the owner of the files: root becomes this user once the disk is mounted
	GID    int
}

// Possible returns why a disk with faults is not possible here, and how to make it so; nil if it is possible.
func Possible() error {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return errors.New("a disk with faults needs FUSE, and this kernel or container has no /dev/fuse: modprobe fuse, or give the container the device")
	case err != nil:
		return fmt.Errorf("a disk with faults needs FUSE: %w; run this as root, or as a user who may open /dev/fuse", err)
	}
	_ = f.Close()
	if os.Geteuid() == 0 {
		return nil
	}
	if _, err := fusermount(); err != nil {
		return errors.New("a disk with faults needs root, or fusermount3: install the package fuse3, or run this as root")
	}
	return nil
}

// Serve shows the disk until it is unmounted or ctx is done; then held operations continue, and the mount, if it still
// exists, is dead until Unmount is called. As root it becomes the owner of the files once they are shown, for good: it
// wants a process of its own.
func Serve(ctx context.Context, o Options) error {
	syscall.Umask(0) // the kernel has applied the caller's
	g := newGate()
	aside := o.Below + ".aside"
	if err := os.Mkdir(aside, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := os.Lchown(aside, o.UID, o.GID); err != nil {
		return err
	}
	j, err := newJournal(o.Below, aside)
	if err != nil {
		return err
	}
	control, err := listen(o.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = control.Close() }()
	server, err := mount(o, &device{gate: g, journal: j})
	if err != nil {
		return err
	}
	if err := become(o.UID, o.GID); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { server.Wait(); close(done) }()
	answering := make(chan struct{})
	go func() { answer(control, g, j); close(answering) }()
	tick := time.NewTicker(writeBack / 6)
	defer tick.Stop()
	for serving := true; serving; {
		select {
		case <-tick.C:
			j.age()
		case <-done:
			serving = false
		case <-ctx.Done():
			g.set(Fault{})
			serving = false
		}
	}
	_ = control.Close()
	<-answering
	return nil
}

func mount(o Options, d *device) (*fuse.Server, error) {
	var st syscall.Stat_t
	if err := syscall.Stat(o.Below, &st); err != nil {
		return nil, fmt.Errorf("look at %s: %w", o.Below, err)
	}
	root := &node{&fs.LoopbackNode{RootData: &fs.LoopbackRoot{Path: o.Below, Dev: st.Dev}}, d}
	cache := time.Minute // no other process changes the files below
	server, err := fs.Mount(o.Mount, root, &fs.Options{
		AttrTimeout: &cache, EntryTimeout: &cache,
		MountOptions: fuse.MountOptions{
			Name: Name, FsName: filepath.Base(o.Mount), MaxWrite: 1 << 20, Options: []string{"default_permissions"},
			DirectMountStrict: os.Geteuid() == 0, AllowOther: os.Geteuid() == 0,
			DisabledCapabilities: fuse.CAP_PASSTHROUGH, // it would go round the gate
			DisableXAttrs:        true,
			// No other process changes the files below, so the kernel need not drop what it has cached when the
			// modification time is a new one. It would do so beside a write that is under way, and read back what stood
			// there before.
			ExplicitDataCacheControl: true,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("mount %s: %w", o.Mount, err)
	}
	return server, nil
}

// become gives up root for the owner of the files: then what they own, and only that, is theirs to change through the
// disk as well.
func become(uid, gid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := errors.Join(syscall.Setgroups([]int{gid}), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return fmt.Errorf("become user %d: %w", uid, err)
	}
	return nil
}

// Mounted reports whether a disk with faults, alive or dead, is mounted at dir.
func Mounted(dir string) (bool, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) > 6 && unescape(f[4]) == dir && strings.Contains(line, " fuse."+Name+" ") {
			return true, nil
		}
	}
	return false, nil
}

// unescape undoes what the kernel does to blanks in a path.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Unmount takes away every disk with faults that is mounted at dir, also a dead one and one in use: processes that have
// it open get errors. No other mount is touched. It is not an error if nothing is mounted.
func Unmount(dir string) error {
	for range 100 {
		if is, err := Mounted(dir); err != nil || !is {
			return err
		}
		if os.Geteuid() == 0 {
			if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %s: %w", dir, err)
			}
			continue
		}
		bin, err := fusermount()
		if err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		out, err := exec.CommandContext(ctx, bin, "-u", "-z", dir).CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("unmount %s: %w: %s", dir, err, strings.TrimSpace(string(out)))
		}
	}
	return fmt.Errorf("unmount %s: there is always one more", dir)
}

func fusermount() (string, error) {
	for _, name := range []string{"fusermount3", "fusermount"} {
		if p, err := exec.LookPath(name); err == nil {
			return p, nil
		}
	}
	return "", errors.New("there is no fusermount3: install the package fuse3")
}
