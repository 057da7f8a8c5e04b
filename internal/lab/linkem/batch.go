package linkem

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// vnetHeader is the length of the kernel's struct virtio_net_hdr in front of each buffer of a TUN device. The device
// passes buffers as a network card with offloads does. A buffer has up to 64 kB of a TCP connection with one header,
// which the sender cuts into packets, and its checksums are still to be completed. The struct has the flags, the kind,
// the length of the headers, the payload of each packet, and the place of the checksum. It is section 5.1.6 of the
// Virtio specification, in the machine's byte order.
const vnetHeader = 10

// maxBurst is the size of the largest buffer that a device passes, with the header in front.
const maxBurst = vnetHeader + 65535

// Offsets in the header in front.
const (
	vnetFlags    = 0
	vnetKind     = 1
	vnetHeaders  = 2
	vnetEach     = 4
	vnetCSumFrom = 6
	vnetCSumAt   = 8
)

// burst is what a device passed at a time: one packet, or several packets of a TCP connection that follow each other.
type burst struct {
	b       []byte // with the header in front
	headers int    // bytes of IP and TCP headers that each packet has
	each    int    // payload of every packet but the last
	packets int
}

// newBurst reads what came from a device; it returns false for anything but an IPv4 packet, which has no link here.
func newBurst(b []byte) (burst, bool) {
	if len(b) < vnetHeader+ipHeader || b[vnetHeader]>>4 != 4 {
		return burst{}, false
	}
	one := burst{b: b, packets: 1}
	each := int(binary.NativeEndian.Uint16(b[vnetEach:]))
	if b[vnetKind] != unix.VIRTIO_NET_HDR_GSO_TCPV4 || each == 0 {
		return one, true
	}
	ip := b[vnetHeader:]
	tcp := int(ip[0]&0xf) * 4
	if ip[9] != protoTCP || len(ip) < tcp+tcpHeader {
		return burst{}, false
	}
	headers := tcp + int(ip[tcp+12]>>4)*4
	if tcp < ipHeader || headers < tcp+tcpHeader {
		return burst{}, false
	}
	if len(ip) <= headers {
		return one, true
	}
	return burst{b: b, headers: headers, each: each, packets: (len(ip) - headers + each - 1) / each}, true
}

// packet returns what all packets have in common: that of a single one, or the headers and the payload of all.
func (u *burst) packet() []byte { return u.b[vnetHeader:] }

// size returns how many bytes count packets from the one on take on the wire.
func (u *burst) size(first, count int) int {
	if u.packets == 1 {
		return len(u.packet())
	}
	return count*u.headers + u.payload(first, count)
}

func (u *burst) payload(first, count int) int {
	return min((first+count)*u.each, len(u.packet())-u.headers) - first*u.each
}

// cut returns count packets of the burst from first on, with the header in front, in dst, which is large enough; all of
// it is not copied.
func (u *burst) cut(dst []byte, first, count int) []byte {
	if count == u.packets {
		return u.b
	}
	n := u.payload(first, count)
	dst = append(dst[:0], u.b[:vnetHeader+u.headers]...)
	from := vnetHeader + u.headers + first*u.each
	dst = append(dst, u.b[from:from+n]...)
	if count == 1 {
		dst[vnetKind] = unix.VIRTIO_NET_HDR_GSO_NONE
		binary.NativeEndian.PutUint16(dst[vnetEach:], 0)
	}
	ip := dst[vnetHeader:]
	tcp := ip[int(ip[0]&0xf)*4:]
	binary.NativeEndian.PutUint16(dst[vnetHeaders:], uint16(u.headers))
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[4:], binary.BigEndian.Uint16(ip[4:])+uint16(first))
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], fold(sum(0, ip[:len(ip)-len(tcp)])))
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(tcp[4:])+uint32(first*u.each))
	if first > 0 {
		tcp[13] &^= tcpCWR // it is reported once, by the first
	}
	if first+count < u.packets {
		tcp[13] &^= tcpFIN | tcpPSH // and these by the last
	}
	// The receiver's kernel takes the checksum as one to be completed, from that of addresses, protocol and length.
	binary.BigEndian.PutUint16(tcp[16:], ^fold(sum(protoTCP+uint32(len(tcp)), ip[12:20])))
	return dst
}

// complete puts the checksum into a single packet whose sender left it to its device, and the header in front is
// nothing any more.
func complete(b []byte) {
	if b[vnetFlags]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
		from, at := int(binary.NativeEndian.Uint16(b[vnetCSumFrom:])), int(binary.NativeEndian.Uint16(b[vnetCSumAt:]))
		if part := b[vnetHeader:]; from+at+2 <= len(part) {
			part = part[from:]
			c := fold(sum(0, part)) // the sum so far is a part of it
			if c == 0 {
				c = 0xffff // which is the same, and not UDP's "none"
			}
			binary.BigEndian.PutUint16(part[at:], c)
		}
	}
	clear(b[:vnetHeader])
}
