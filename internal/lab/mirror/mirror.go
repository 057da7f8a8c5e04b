package mirror

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// Disk is a mirror: where its files are, and where it is shown. It may be made or not.
type Disk struct {
	Files string // a directory of its own for the two files
	At    string // where it is mounted
	UID   int    // owns the root directory of a new file system
	GID   int
}

// Size is that of each side. The files are sparse: they take the room of what was written.
const Size = 8 << 30

// toolLimit is how long a tool may take.
const toolLimit = 2 * time.Minute

// Sides are the names of the sides, in the order of their devices.
var Sides = []string{"first", "second"}

// State is how a mirror is.
type State struct {
	Mounted  bool     `json:"mounted"`
	ReadOnly bool     `json:"read_only,omitempty"` // the file system gave up, after both sides were lost
	Lost     []string `json:"lost,omitempty"`      // sides
	Storage  string   `json:"storage,omitempty"`   // the state by package storage
}

// String returns the state in a few words.
func (s State) String() string {
	switch {
	case !s.Mounted:
		return "mirror not mounted"
	case s.ReadOnly:
		return "mirror read-only: it gave up"
	case len(s.Lost) > 0:
		return "mirror without its " + strings.Join(s.Lost, " and its ") + " side"
	case s.Storage != "" && s.Storage != string(storage.Whole):
		return "mirror " + s.Storage
	}
	return "mirror whole"
}

// Possible returns why there can be no mirrors on this machine; nil if there can.
func Possible() error {
	if os.Geteuid() != 0 {
		return errors.New("a mirror of the lab needs root, for loop devices and mounts")
	}
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	if !strings.Contains(string(b), "\tbtrfs\n") {
		return errors.New("this kernel has no btrfs (modprobe btrfs, if it is a module)")
	}
	for _, tool := range []string{"mkfs.btrfs", "btrfs"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("there is no %s here: install btrfs-progs", tool)
		}
	}
	f, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("there are no loop devices here: %w", err)
	}
	defer func() { _ = f.Close() }()
	n, err := unix.IoctlRetInt(int(f.Fd()), unix.LOOP_CTL_GET_FREE) // a container may have the file and not the right
	if err == nil {
		_, err = os.Stat(fmt.Sprintf("/dev/loop%d", n))
	}
	if err != nil {
		return fmt.Errorf("there is no free loop device here: %w", err)
	}
	return nil
}

// made is the file that shows that the file system was made, whole.
func (d Disk) made() string { return filepath.Join(d.Files, "made") }

func (d Disk) side(i int) string { return filepath.Join(d.Files, Sides[i]) }

// Mount makes the file system, unless it is made, and mounts it, unless it is mounted.
func (d Disk) Mount(ctx context.Context) error {
	if on, _, err := d.mounted(); on || err != nil {
		return err
	}
	fresh, err := d.makeFiles()
	if err != nil {
		return err
	}
	var devices []string
	for i := range Sides {
		f, err := attach(d.side(i))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // the mount holds the device by then, or nothing does
		devices = append(devices, f.Name())
	}
	if fresh {
		if err := tool(ctx, "mkfs.btrfs", append([]string{"-q", "-f", "-d", "raid1", "-m", "raid1"}, devices...)...); err != nil {
			return err
		}
		if err := os.WriteFile(d.made(), nil, 0o600); err != nil { // before the mount: later ones must not make it anew
			return err
		}
	}
	if err := os.MkdirAll(d.At, 0o700); err != nil {
		return err
	}
	// Below as well as on the file system: the owner of a node directory decides where its sockets are, also while the
	// mirror is away.
	if err := os.Lchown(d.At, d.UID, d.GID); err != nil {
		return err
	}
	options := "device=" + devices[0] + ",device=" + devices[1]
	if err := unix.Mount(devices[0], d.At, "btrfs", unix.MS_NOATIME|unix.MS_NODEV|unix.MS_NOSUID, options); err != nil {
		return fmt.Errorf("mount the mirror at %s: %w", d.At, err)
	}
	return errors.Join(os.Chown(d.At, d.UID, d.GID), os.Chmod(d.At, 0o700)) //nolint:gosec // a directory
}

// makeFiles makes the two files and reports whether they are new.
func (d Disk) makeFiles() (fresh bool, err error) {
	if err := os.MkdirAll(d.Files, 0o700); err != nil {
		return false, err
	}
	if _, err := os.Stat(d.made()); err == nil {
		return false, nil
	}
	for i := range Sides {
		f, err := os.OpenFile(d.side(i), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
		if err != nil {
			return false, err
		}
		if err := errors.Join(f.Truncate(Size), f.Close()); err != nil {
			return false, err
		}
	}
	return true, nil
}

// mounted reports whether the mirror is mounted, and whether it gave up.
func (d Disk) mounted() (on, readOnly bool, err error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return false, false, err
	}
	for line := range strings.Lines(string(b)) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if len(f) > 5 && f[4] == d.At && len(g) > 2 && g[0] == "btrfs" {
			on, readOnly = true, strings.HasPrefix(g[2]+",", "ro,")
		}
	}
	return on, readOnly, nil
}

// Unmount unmounts the mirror; its files stay. Processes on it must have ended.
func (d Disk) Unmount(ctx context.Context) error {
	on, _, err := d.mounted()
	if !on || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	last := error(nil)
	if retry.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		last = unix.Unmount(d.At, unix.UMOUNT_NOFOLLOW)
		return !errors.Is(last, unix.EBUSY), nil
	}) != nil { // a process that is in the kernel: what it holds goes with it
		last = unix.Unmount(d.At, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if last != nil {
		return fmt.Errorf("unmount the mirror at %s: %w", d.At, last)
	}
	return nil
}

// Remove unmounts the mirror and removes its files.
func (d Disk) Remove(ctx context.Context) error {
	return errors.Join(d.Unmount(ctx), os.RemoveAll(d.Files))
}

// State returns how the mirror is.
func (d Disk) State(ctx context.Context) (s State) {
	on, readOnly, err := d.mounted()
	if err != nil || !on {
		return State{}
	}
	s = State{Mounted: true, ReadOnly: readOnly}
	for i, name := range Sides {
		if dev, err := deviceOf(d.side(i)); err != nil || lost(dev) {
			s.Lost = append(s.Lost, name)
		}
	}
	s.Storage = string((&storage.Reader{}).Look(ctx, d.At)[0].State)
	return s
}

// tool runs a program of btrfs.
func tool(ctx context.Context, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.WaitDelay = time.Second
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %.500s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
