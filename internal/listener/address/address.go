package address

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens at an address: the path of a Unix socket if it begins with "/", else host:port. all is the list with
// the address in it, separated by commas.
func Listen(ctx context.Context, address, all string) (net.Listener, error) {
	return listen(ctx, address, family(address, all), forMachine)
}

// ListenFree is Listen for an address that need not exist on this machine yet.
func ListenFree(ctx context.Context, address string) (net.Listener, error) {
	return listen(ctx, address, "tcp", func(_, _ string, c syscall.RawConn) error {
		var bad error
		err := c.Control(func(fd uintptr) { bad = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, bad)
	})
}

func listen(ctx context.Context, address, network string, control func(network, address string, c syscall.RawConn) error) (l net.Listener, err error) {
	if strings.HasPrefix(address, "/") {
		l, err = openSocket(ctx, address)
	} else {
		l, err = (&net.ListenConfig{Control: control}).Listen(ctx, network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	return l, nil
}

// forMachine is the Control function of a TCP listener; accepted connections inherit what is set here. On a loopback
// address nothing is lost or delayed, so the simplest congestion control suffices. Where the system's default is BBR,
// which paces, that saves a tenth of the processor time of a session.
func forMachine(_, address string, c syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || !ip.IsLoopback() {
		return nil //nolint:nilerr // listening says what is wrong with the address
	}
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // built into every kernel; on an error the default works, too
	})
}

// family returns the network for an address. An IPv6 wildcard accepts IPv4, too, unless IPv4 has an address of its
// own.
func family(address, all string) string {
	host, port, err := net.SplitHostPort(address)
	if err == nil && strings.Contains(host, ":") && strings.Contains(","+strings.ReplaceAll(all, " ", "")+",", ",0.0.0.0:"+port+",") {
		return "tcp6"
	}
	return "tcp"
}
