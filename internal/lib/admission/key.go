package admission

import (
	"net"
	"net/netip"
)

// Key returns the key under which a caller is counted: its IPv4 address, or the /64 network of its IPv6 address, since
// one host has all of that. An address without an IP is its own key.
func Key(addr net.Addr) string { return key(addr, 64) }

// Site returns the key of the caller's site: its IPv4 address, or the /48 network of its IPv6 address. One customer of
// a network has up to 65,536 networks of size /64.
func Site(addr net.Addr) string { return key(addr, 48) }

func key(addr net.Addr, bits int) string {
	var ip netip.Addr
	switch a := addr.(type) {
	case *net.TCPAddr:
		ip = a.AddrPort().Addr()
	case *net.UDPAddr:
		ip = a.AddrPort().Addr()
	default:
		ap, err := netip.ParseAddrPort(addr.String())
		if err != nil {
			return addr.String()
		}
		ip = ap.Addr()
	}
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		return netip.PrefixFrom(ip, bits).Masked().String()
	}
	return ip.String()
}
