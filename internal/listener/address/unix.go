package address

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// unixListener is a Unix socket with a lock file beside it, as PostgreSQL's own has one. A server that is started there
// sees that the name is taken, and does not remove it.
type unixListener struct {
	net.Listener
	lock string
}

// openSocket listens at the path, unless another server has the name.
func openSocket(ctx context.Context, path string) (net.Listener, error) {
	lock := path + ".lock"
	if err := claimName(lock, path); err != nil {
		return nil, err
	}
	err := removeStale(ctx, path)
	var l net.Listener
	if err == nil {
		l, err = (&net.ListenConfig{}).Listen(ctx, "unix", path)
	}
	if err == nil {
		// As PostgreSQL's own socket: every user may connect, and the rules decide.
		if err = os.Chmod(path, 0o777); err != nil { //nolint:gosec // see above
			_ = l.Close()
		}
	}
	if err != nil {
		_ = os.Remove(lock)
		return nil, err
	}
	return unixListener{l, lock}, nil
}

// Close removes the socket and its lock file.
func (s unixListener) Close() error { return errors.Join(s.Listener.Close(), os.Remove(s.lock)) }

// claimName makes the lock file. Its first line is the process that has the name, as a postmaster reads and writes it.
// A file is replaced if its process has ended, or is this one before it executed itself again.
func claimName(lock, path string) error {
	for range 10 {
		f, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = fmt.Fprintf(f, "%d\ncoterie\n", os.Getpid())
			return errors.Join(err, f.Close())
		}
		if !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("claim the name of %s: %w", path, err)
		}
		b, err := os.ReadFile(lock)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return fmt.Errorf("claim the name of %s: %w", path, err)
		}
		line, _, _ := strings.Cut(string(b), "\n")
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil || pid <= 0 {
			return fmt.Errorf("%s is no lock file of a server: look what made it, and remove it", lock)
		}
		if pid != os.Getpid() && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return fmt.Errorf("another server, process %d, has the name %s", pid, path)
		}
		if err := os.Remove(lock); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("claim the name of %s: %w", path, err)
		}
	}
	return fmt.Errorf("claim the name of %s: another server comes and goes there", path)
}

// removeStale removes a socket without a listening process.
func removeStale(ctx context.Context, path string) error {
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSocket == 0 {
		return nil //nolint:nilerr // nothing to remove; Listen reports what stands in the way
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close()
		return fmt.Errorf("another program listens on %s", path)
	}
	if err := os.Remove(path); err != nil {
		return err
	}
	return nil
}
