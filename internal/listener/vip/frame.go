package vip

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
)

// The frames by which neighbours learn an address and claim one. They are ARP (RFC 826, announcements and probes of RFC
// 5227) and neighbour discovery (RFC 4861, unsolicited advertisements in 7.2.6; duplicate detection of RFC 4862).

const (
	etherARP  = 0x0806
	etherIPv6 = 0x86dd

	arpRequest, arpReply = 1, 2

	icmp6              = 58
	neighbourSolicit   = 135
	neighbourAdvertise = 136

	headerLen = 14         // of Ethernet
	arpLen    = 28         // of ARP for IPv4 over Ethernet
	ip6Len    = 40         // of the IPv6 header
	ndLen     = 24         // of both messages, without options
	ndOption  = 8          // a link-layer address
	overrides = 0x20000000 // of an advertisement: override known addresses
)

var (
	everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	nobody    = net.HardwareAddr{0, 0, 0, 0, 0, 0}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// announcements tell the neighbours that own has the address.
func announcements(own net.HardwareAddr, a netip.Addr) [][]byte {
	if a.Is4() {
		// Some neighbours learn an address from a request, others from a reply (RFC 5227, 3).
		return [][]byte{arp(arpRequest, host{own, a}, host{nobody, a}), arp(arpReply, host{own, a}, host{own, a})}
	}
	m := make([]byte, ndLen+ndOption)
	m[0] = neighbourAdvertise
	binary.BigEndian.PutUint32(m[4:], overrides)
	copy(m[8:], a.AsSlice())
	m[ndLen], m[ndLen+1] = 2, 1 // the target's link-layer address, in units of eight bytes
	copy(m[ndLen+2:], own)
	return [][]byte{discovery(host{own, a}, allNodes, m)}
}

// probe asks which host has the address, without claiming it.
func probe(own net.HardwareAddr, a netip.Addr) []byte {
	if a.Is4() {
		return arp(arpRequest, host{own, netip.IPv4Unspecified()}, host{nobody, a})
	}
	m := make([]byte, ndLen)
	m[0] = neighbourSolicit
	copy(m[8:], a.AsSlice())
	group := netip.MustParseAddr("ff02::1:ff00:0").As16() // the hosts whose address has the same last 24 bits
	end := a.As16()
	copy(group[13:], end[13:])
	to := netip.AddrFrom16(group)
	return discovery(host{own, netip.IPv6Unspecified()}, to, m)
}

func ethernet(to, from net.HardwareAddr, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(bytes.Clone(to), from...), kind)
}

// host is a machine as ARP and neighbour discovery name it.
type host struct {
	link net.HardwareAddr
	addr netip.Addr
}

// arp returns a broadcast frame with an ARP packet.
func arp(op uint16, sender, target host) []byte {
	b := ethernet(everybody, sender.link, etherARP)
	b = append(b, 0, 1, 8, 0, 6, 4) // Ethernet, IPv4, lengths of both kinds of address
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, sender.link...), sender.addr.AsSlice()...)
	return append(append(b, target.link...), target.addr.AsSlice()...)
}

// discovery returns a frame to a multicast group with an ICMPv6 message, whose checksum it sets.
func discovery(from host, group netip.Addr, m []byte) []byte {
	b := ethernet(multicast(group), from.link, etherIPv6)
	b = append(b, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
	b = append(b, icmp6, 255) // this hop limit proves that no router forwarded it
	b = append(append(b, from.addr.AsSlice()...), group.AsSlice()...)
	sum := uint32(len(m)) + icmp6
	for _, part := range [][]byte{from.addr.AsSlice(), group.AsSlice(), m} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return append(b, m...)
}

// multicast returns the link-layer address of a group.
func multicast(group netip.Addr) net.HardwareAddr {
	g := group.As16()
	return net.HardwareAddr{0x33, 0x33, g[12], g[13], g[14], g[15]}
}

// claim returns the address that a frame claims and the host that claims it: the sender of ARP, or the target of an
// advertisement.
func claim(frame []byte) (a netip.Addr, by net.HardwareAddr, ok bool) {
	if len(frame) < headerLen {
		return a, nil, false
	}
	source, body := net.HardwareAddr(bytes.Clone(frame[6:12])), frame[headerLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherARP:
		if len(body) < arpLen || !bytes.Equal(body[:6], []byte{0, 1, 8, 0, 6, 4}) {
			return a, nil, false
		}
		a, _ = netip.AddrFromSlice(body[14:18])
		return a, net.HardwareAddr(bytes.Clone(body[8:14])), !a.IsUnspecified()
	case etherIPv6:
		if len(body) < ip6Len+ndLen || body[6] != icmp6 || body[7] != 255 || body[ip6Len] != neighbourAdvertise {
			return a, nil, false
		}
		a, _ = netip.AddrFromSlice(body[ip6Len+8 : ip6Len+ndLen])
		return a, source, true
	}
	return a, nil, false
}
