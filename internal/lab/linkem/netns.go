package linkem

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// namespaces is where ip netns keeps its names: a file each, over which the namespace is mounted.
const namespaces = "/run/netns"

// Enter calls f on a thread inside the named network namespace. Sockets that f makes stay there, also if other threads
// use them later; so do processes that f starts. Goroutines that f starts do not.
func Enter(namespace string, f func() error) error {
	ns, err := os.Open(filepath.Join(namespaces, namespace))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no network namespace %s: is the lab's network up?", namespace)
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	return away(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", namespace, err)
		}
		return f()
	})
}

// away calls f, which may change its thread's network namespace, and brings the thread home.
func away(f func() error) error {
	done := make(chan error, 1)
	go func() { // of its own, so that a thread that cannot come home ends with it
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		err = f()
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Exists reports whether there is a network namespace of that name, and not only a file.
func Exists(namespace string) bool {
	var st unix.Statfs_t
	return unix.Statfs(filepath.Join(namespaces, namespace), &st) == nil && st.Type == unix.NSFS_MAGIC
}

// Processes returns the ids of what runs in the named network namespace; nothing runs in one that is not there.
func Processes(namespace string) ([]int, error) {
	if !Exists(namespace) {
		return nil, nil
	}
	ns, err := os.Stat(filepath.Join(namespaces, namespace))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var ids []int
	for _, e := range entries {
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := os.Stat(filepath.Join("/proc", e.Name(), "ns/net")); err == nil && os.SameFile(st, ns) { // else gone meanwhile
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Inside reports whether the calling thread is in the named network namespace.
func Inside(namespace string) bool {
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil || !Exists(namespace) {
		return false
	}
	ns, err := os.Stat(filepath.Join(namespaces, namespace))
	return err == nil && os.SameFile(own, ns)
}

// create makes a named network namespace, as ip netns add does.
func create(name string) error {
	file := filepath.Join(namespaces, name)
	f, err := os.OpenFile(file, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444) //nolint:gosec // what ip netns makes
	if err != nil {
		return err
	}
	err = errors.Join(f.Close(), away(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", file, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("name network namespace %s: %w", name, err)
		}
		return nil
	}))
	if err != nil {
		return errors.Join(err, remove(name))
	}
	return nil
}

// remove takes the name from a network namespace, which ends when the last process and socket in it do.
func remove(name string) error {
	file := filepath.Join(namespaces, name)
	err := unix.Unmount(file, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not mounted, not there
		return fmt.Errorf("unmount %s: %w", file, err)
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// lock prepares the folder of names as ip netns does, shared with other mount namespaces so that a name removed here is
// removed everywhere. It also keeps other labs from choosing addresses at the same time.
func lock() (unlock func(), err error) {
	if err := os.MkdirAll(namespaces, 0o755); err != nil { //nolint:gosec // what ip netns makes
		return nil, err
	}
	d, err := os.Open(namespaces)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = d.Close() } // which also unlocks
	if err := flock(d, 10*time.Second); err != nil {
		unlock()
		return nil, err
	}
	err = unix.Mount("", namespaces, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount point yet
		if err = unix.Mount(namespaces, namespaces, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", namespaces, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		unlock()
		return nil, fmt.Errorf("share %s: %w", namespaces, err)
	}
	return unlock, nil
}

func flock(f *os.File, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := retry.Until(ctx, 10*time.Millisecond, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil
		}
		return true, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s has been locked for %v: is another lab's network stuck while it starts?", f.Name(), patience)
	}
	return err
}

// ErrRunning is returned when the process that runs the lab's network is alive.
var ErrRunning = errors.New("the lab's network is running")

// Sweep removes the remains of a lab's network whose process was killed: the namespaces' names, and the routes of
// Guard. The devices ended with the process. Namespaces in which processes still run end when those do. It returns
// ErrRunning if the network's process lives, and nil when there is nothing to remove.
func Sweep(lab string) error {
	if err := checkName("lab", lab, maxLab); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return ErrNotRoot
	}
	if _, err := os.Stat(namespaces); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	return sweep(lab)
}

// sweep is Sweep under the lock.
func sweep(lab string) error {
	if err := awaitNoOwner(lab); err != nil {
		return err
	}
	entries, err := os.ReadDir(namespaces)
	if err != nil {
		return err
	}
	err = removeGuards(lab)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), namespace(lab, "")) {
			err = errors.Join(err, remove(e.Name()))
		}
	}
	return err
}

// awaitNoOwner returns ErrRunning if a process runs the lab's network: the host's device lives exactly as long as that.
func awaitNoOwner(lab string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // a killed process has ended by then
	defer cancel()
	err := retry.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		_, err := netlink.LinkByName(device(lab))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for device %s: %w", device(lab), err)
		}
		return false, nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("lab %s: %w", lab, ErrRunning)
	}
	return err
}
