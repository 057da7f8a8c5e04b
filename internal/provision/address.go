package provision

import (
	"context"
	"net"
	"os"
)

// PortFree returns an error if addr, as host:port, cannot be listened on.
func PortFree(ctx context.Context, addr string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// OwnAddress guesses the address at which other hosts reach this one. It is the source address of a packet to an
// outside host, or else the host name.
func OwnAddress(ctx context.Context) string {
	if c, err := (&net.Dialer{}).DialContext(ctx, "udp", "192.0.2.1:9"); err == nil { // no packet is sent
		defer func() { _ = c.Close() }()
		if a, ok := c.LocalAddr().(*net.UDPAddr); ok && !a.IP.IsLoopback() {
			return a.IP.String()
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return "127.0.0.1"
	}
	return host
}
