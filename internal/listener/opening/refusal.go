package opening

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Refusal waits for the server's first message, within the connection's deadline, and leaves it unread. It returns
// the body of an ErrorResponse, alone or behind AuthenticationOk, which a server sends in one piece; nil for anything
// else.
func Refusal(conn net.Conn) []byte {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	sys, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	b, n := make([]byte, 1024), 0
	_ = sys.Read(func(fd uintptr) bool {
		for {
			if n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT); !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	b = b[:max(n, 0)]
	const authentication = 9 // bytes of AuthenticationOk
	if len(b) > authentication && b[0] == 'R' {
		b = b[authentication:]
	}
	if len(b) < 5 || b[0] != 'E' {
		return nil
	}
	return b[5:]
}
