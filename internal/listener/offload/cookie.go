package offload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errNoPeer means that the kernel does not tell the other end of a Unix socket.
var errNoPeer = errors.New("the other end of a socket is not known")

// Layout of queries to the kernel about Unix sockets: linux/unix_diag.h, sock_diag(7).
const (
	sockDiagByFamily = 20
	unixDiagPeer     = 2
	unixDiagShowPeer = 4
	diagHead         = unix.SizeofNlMsghdr
	diagBody         = 16
)

// SenderCookie returns the cookie under which the program sees the bytes that arrive on a connected socket. It is the
// socket's own for TCP. On a Unix socket it is that of the other end, since bytes belong to their sender until they are
// read.
func SenderCookie(fd int) (uint64, error) {
	if IsTCP(fd) {
		return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	nl, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(nl) }()
	_ = unix.SetsockoptTimeval(nl, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1})
	_, peer, err := askUnix(nl, uint32(st.Ino))
	if err != nil {
		return 0, err
	}
	if peer == 0 {
		return 0, errNoPeer
	}
	cookie, _, err := askUnix(nl, peer)
	return cookie, err
}

// askUnix returns the cookie of the Unix socket with that inode, and the inode of its other end.
func askUnix(nl int, inode uint32) (cookie uint64, peer uint32, err error) {
	q := binary.NativeEndian.AppendUint32(nil, diagHead+24)
	q = binary.NativeEndian.AppendUint16(q, sockDiagByFamily)
	q = binary.NativeEndian.AppendUint16(q, unix.NLM_F_REQUEST)
	q = append(q, make([]byte, 8)...)                   // sequence and sender
	q = append(q, unix.AF_UNIX, 0, 0, 0)                // family, protocol
	q = binary.NativeEndian.AppendUint32(q, ^uint32(0)) // states: all
	q = binary.NativeEndian.AppendUint32(q, inode)
	q = binary.NativeEndian.AppendUint32(q, unixDiagShowPeer)
	q = append(q, bytes.Repeat([]byte{0xff}, 8)...) // any cookie
	if err := unix.Sendto(nl, q, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, 0, fmt.Errorf("asking about a Unix socket: %w", err)
	}
	var buf [1024]byte
	n, _, err := unix.Recvfrom(nl, buf[:], 0)
	if err != nil {
		return 0, 0, fmt.Errorf("asking about a Unix socket: %w", err)
	}
	b := buf[:n]
	if len(b) < diagHead+diagBody || binary.NativeEndian.Uint16(b[4:]) != sockDiagByFamily {
		return 0, 0, errNoPeer
	}
	b = b[diagHead:]
	cookie = uint64(binary.NativeEndian.Uint32(b[8:])) | uint64(binary.NativeEndian.Uint32(b[12:]))<<32
	for b = b[diagBody:]; len(b) >= 4; {
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < 4 || size > len(b) {
			break
		}
		if typ == unixDiagPeer && size >= 8 {
			peer = binary.NativeEndian.Uint32(b[4:])
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return cookie, peer, nil
}

// tcpClosed is a state of a TCP socket: tcp(7), linux/tcp_states.h.
const tcpClosed = 7

// BytesWritten returns how many bytes were ever written to a TCP socket, up to a constant: those that were acknowledged
// and those that wait for it. waiting is the number of the latter. It fails if the connection has ended.
func BytesWritten(fd int) (all uint64, waiting int, err error) {
	for {
		before, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return 0, 0, err
		}
		waits, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		if err != nil {
			return 0, 0, err
		}
		after, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return 0, 0, err
		}
		if after.State == tcpClosed {
			return 0, waits, unix.ECONNRESET
		}
		if before.Bytes_acked == after.Bytes_acked {
			return after.Bytes_acked + uint64(waits), waits, nil
		}
	}
}

// IsTCP reports whether BytesWritten works on a socket.
func IsTCP(fd int) bool {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return false
	}
	switch sa.(type) {
	case *unix.SockaddrInet4, *unix.SockaddrInet6:
		return true
	}
	return false
}
