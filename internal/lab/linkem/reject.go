package linkem

import "encoding/binary"

// Offsets and numbers of IPv4, TCP and ICMP that the switch needs.
const (
	ipHeader  = 20
	tcpHeader = 20

	protoICMP = 1
	protoTCP  = 6
	protoUDP  = 17

	tcpFIN, tcpSYN, tcpRST, tcpPSH, tcpACK, tcpCWR = 0x01, 0x02, 0x04, 0x08, 0x10, 0x80
)

// begins reports whether a packet is of a kind that a firewall that accepts no connection drops.
func begins(packet []byte) bool {
	header := int(packet[0]&0xf) * 4
	switch packet[9] {
	case protoUDP:
		return true
	case protoTCP:
		return len(packet) >= header+tcpHeader && packet[header+13]&(tcpSYN|tcpACK) == tcpSYN
	}
	return false
}

// refusal returns the answer of a host that refuses packet: a TCP reset, or ICMP port unreachable for all else. It
// returns nil where none is due, as for a reset, an ICMP error, or a later fragment. It appends to buf.
func refusal(buf, packet []byte) []byte {
	if len(packet) < ipHeader || packet[0]>>4 != 4 {
		return nil
	}
	header := int(packet[0]&0xf) * 4
	if header < ipHeader || len(packet) < header || binary.BigEndian.Uint16(packet[6:])&0x1fff != 0 {
		return nil
	}
	payload := packet[header:]
	switch packet[9] {
	case protoTCP:
		return refuseTCP(buf, packet, payload)
	case protoICMP:
		const echoRequest = 8
		if len(payload) < 8 || payload[0] != echoRequest {
			return nil
		}
	}
	return refuseICMP(buf, packet, header)
}

func refuseTCP(buf, packet, segment []byte) []byte {
	if len(segment) < tcpHeader || segment[13]&tcpRST != 0 {
		return nil
	}
	out := answer(buf, packet, protoTCP, tcpHeader)
	tcp := out[ipHeader:]
	copy(tcp[0:2], segment[2:4]) // the ports change places
	copy(tcp[2:4], segment[0:2])
	if segment[13]&tcpACK != 0 { // a reset of a connection carries the number that its receiver expects
		copy(tcp[4:8], segment[8:12])
		tcp[13] = tcpRST
	} else {
		n := uint32(len(segment) - min(len(segment), int(segment[12]>>4)*4))
		if segment[13]&tcpSYN != 0 {
			n++
		}
		if segment[13]&tcpFIN != 0 {
			n++
		}
		binary.BigEndian.PutUint32(tcp[8:], binary.BigEndian.Uint32(segment[4:])+n)
		tcp[13] = tcpRST | tcpACK
	}
	tcp[12] = tcpHeader / 4 << 4
	pseudo := sum(0, out[12:20]) + protoTCP + tcpHeader
	binary.BigEndian.PutUint16(tcp[16:], fold(sum(pseudo, tcp)))
	return out
}

func refuseICMP(buf, packet []byte, header int) []byte {
	const unreachable, port = 3, 3
	quoted := packet[:min(len(packet), header+8)]
	out := answer(buf, packet, protoICMP, 8+len(quoted))
	icmp := out[ipHeader:]
	icmp[0], icmp[1] = unreachable, port
	copy(icmp[8:], quoted)
	binary.BigEndian.PutUint16(icmp[2:], fold(sum(0, icmp)))
	return out
}

// answer returns an IPv4 packet back to the sender of packet, with room for n bytes.
func answer(buf, packet []byte, protocol byte, n int) []byte {
	out := append(buf[:0], make([]byte, ipHeader+n)...)
	out[0], out[8], out[9] = 0x45, 64, protocol
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	copy(out[12:16], packet[16:20])
	copy(out[16:20], packet[12:16])
	binary.BigEndian.PutUint16(out[10:], fold(sum(0, out[:ipHeader])))
	return out
}

// sum adds b to an Internet checksum, which fold completes.
func sum(s uint32, b []byte) uint32 {
	for len(b) >= 2 {
		s += uint32(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
