package socket

import (
	"errors"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Receive reads what has arrived, without waiting. n == 0 without an error is the end of the stream.
func Receive(fd int, b []byte) (n int, err error) {
	r, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0) //nolint:gosec // the kernel fills b
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// Transmit writes what the socket takes, without waiting.
func Transmit(fd int, b []byte) (n int, err error) {
	r, _, errno := syscall.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0) //nolint:gosec // the kernel reads b
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// WouldWait reports whether err means that a call would have had to wait.
func WouldWait(err error) bool { return err == unix.EAGAIN || err == unix.EINTR } //nolint:errorlint // an errno of our own calls

// SetInherited sets the options that Go sets for each connection it accepts. Connections of the port inherit them.
func SetInherited(fd int) error {
	return errors.Join(
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9),
	)
}

// Local returns the local address of a TCP socket.
func Local(fd int) netip.AddrPort {
	var raw unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(raw))
	_, _, _ = syscall.RawSyscall(unix.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size))) //nolint:gosec // the kernel fills raw
	return addressOf(&raw)
}

// Accept accepts a client, without waiting.
func Accept(listener int) (fd int, from netip.AddrPort, err error) {
	var raw unix.RawSockaddrAny
	size := uint32(unsafe.Sizeof(raw))
	r, _, errno := syscall.RawSyscall6(unix.SYS_ACCEPT4, uintptr(listener), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0) //nolint:gosec // the kernel fills raw
	if errno != 0 {
		return -1, from, errno
	}
	return int(r), addressOf(&raw), nil
}

// addressOf reads a TCP socket address. An IPv4 address is returned as such, whatever the family of the socket.
func addressOf(raw *unix.RawSockaddrAny) netip.AddrPort {
	port := func(p *uint16) uint16 { b := (*[2]byte)(unsafe.Pointer(p)); return uint16(b[0])<<8 | uint16(b[1]) } //nolint:gosec // network byte order
	switch raw.Addr.Family {
	case unix.AF_INET:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(raw)) //nolint:gosec // as its family says
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), port(&a.Port))
	case unix.AF_INET6:
		a := (*unix.RawSockaddrInet6)(unsafe.Pointer(raw)) //nolint:gosec // as its family says
		ip := netip.AddrFrom16(a.Addr).Unmap()
		if a.Scope_id != 0 && ip.Is6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.Scope_id), 10))
		}
		return netip.AddrPortFrom(ip, port(&a.Port))
	}
	return netip.AddrPort{}
}

// Consume takes bytes that were peeked at from a socket.
func Consume(fd, n int) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, uintptr(n), unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0) // an error shows again
}

// Look is Receive that leaves the bytes in the socket.
func Look(fd int, b []byte) (n int, err error) {
	r, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0) //nolint:gosec // the kernel fills b
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

// Write writes what the socket takes now.
func Write(fd int, b []byte) (written int, err error) {
	for written < len(b) {
		n, err := Transmit(fd, b[written:])
		switch {
		case err == unix.EINTR: //nolint:errorlint // an errno
		case err == unix.EAGAIN: //nolint:errorlint // an errno
			return written, nil
		case err != nil:
			return written, err
		}
		written += n
	}
	return written, nil
}
