package linkem

import "encoding/binary"

// maxFlows is how many connections a firewall's table holds. As with a real one, no more can begin when it is full.
const maxFlows = 1 << 16

// flow names a TCP connection in one direction of a link: addresses and ports of both ends.
type flow [12]byte

// flows is what a stateful firewall that has lost its table has learnt since: the connections that began in this direction, or were
// accepted in it. nil knows everything: nothing was lost.
type flows map[flow]struct{}

// knows reports whether the firewall lets a packet pass, and learns from it. Of TCP it drops what belongs to no connection whose beginning
// it saw. Anything else passes: a datagram that nobody knows begins a flow by itself, as does a ping.
func (f flows) knows(packet []byte) bool {
	header := int(packet[0]&0xf) * 4
	switch {
	case f == nil, packet[9] != protoTCP:
		return true
	case binary.BigEndian.Uint16(packet[6:])&0x1fff != 0: // a later fragment, of no use without the first
		return true
	case len(packet) < header+tcpHeader:
		return false
	}
	var id flow
	copy(id[:8], packet[12:20])
	copy(id[8:], packet[header:header+4])
	flags := packet[header+13]
	if flags&tcpSYN != 0 && len(f) < maxFlows {
		f[id] = struct{}{}
	}
	_, known := f[id]
	if flags&tcpRST != 0 {
		delete(f, id)
	}
	return known
}
