package listener

import (
	"net"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

// checkPeer admits the operating system's user of the same name, on a Unix socket.
func (c *client) checkPeer() error {
	refused := pgwire.Fatal("peer", pgwire.StateInvalidAuth, "Peer authentication failed for user %q", c.start.User)
	u, ok := c.raw.(*net.UnixConn)
	if !ok {
		return refused
	}
	sys, err := u.SyscallConn()
	if err != nil {
		return refused
	}
	var cred *unix.Ucred
	var credErr error
	if err := sys.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || credErr != nil {
		return refused
	}
	who, err := user.LookupId(strconv.FormatUint(uint64(cred.Uid), 10))
	if err != nil || who.Username != c.start.User {
		c.log.Info("login failed", "user", c.start.User, "reason", "the peer is another user", "uid", cred.Uid)
		return refused
	}
	return nil
}

// peek looks at what the kernel has received from a client without taking it: whether bytes wait, and whether the client
// has gone. It says neither where it cannot look.
func peek(conn net.Conn) (waiting, gone bool) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false, false
	}
	sys, err := c.SyscallConn()
	if err != nil {
		return false, false
	}
	_ = sys.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case n > 0:
			waiting = true
		case err == nil:
			gone = true
		case err != unix.EAGAIN && err != unix.EINTR:
			gone = true
		}
	})
	return waiting, gone
}
