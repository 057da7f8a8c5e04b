package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// Exec becomes the command, in the network of a node or of the Client: it does not return but with an error. In a node's network
// the names of all nodes resolve.
func (l *Lab) Exec(node string, argv []string) error {
	if err := l.needNamespaces(); err != nil {
		return err
	}
	if len(argv) == 0 {
		return usage("no command; as in: coterie lab exec %s -- ip addr", node)
	}
	if node != Client {
		if _, err := l.node(node); err != nil {
			return usage("the lab has no node %s; it has %s", node, strings.Join(l.ends(), ", "))
		}
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("%s: %w", argv[0], errors.Unwrap(err))
	}
	run := func() error { return syscall.Exec(path, argv, os.Environ()) }
	if node == Client {
		return run()
	}
	hosts, err := l.writeHosts()
	if err != nil {
		return err
	}
	return linkem.Enter(linkem.Namespace(networkOf(l.dir), node), func() error {
		if err := overHosts(hosts); err != nil {
			return err
		}
		return run()
	})
}

// writeHosts makes a hosts file that knows the nodes, besides what this host's knows.
func (l *Lab) writeHosts() (string, error) {
	if !l.d.Subnet.IsValid() {
		return "", errors.New("the lab's network has not been up yet; coterie lab up starts it")
	}
	own, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\t%s\n", l.d.Subnet.Addr().Next(), Client)
	for _, n := range l.Nodes() {
		fmt.Fprintf(&b, "%s\t%s\n", n.host, n.Name)
	}
	path := filepath.Join(l.dir, "hosts")
	text := append([]byte(b.String()), own...)
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
		return path, nil // others may be reading it
	}
	return path, errors.Join(os.WriteFile(path, text, 0o600), os.Chmod(path, 0o644)) //nolint:gosec // any user may read names
}

// overHosts lays the file over /etc/hosts for this thread, and for what it becomes.
func overHosts(path string) error {
	if _, err := os.Stat("/etc/hosts"); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("keep mounts apart: %w", err)
	}
	if err := unix.Mount(path, "/etc/hosts", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("lay %s over /etc/hosts: %w", path, err)
	}
	return nil
}
