package linkem

import (
	"encoding/binary"
	"testing"
)

// ip returns an IPv4 packet from 10.0.0.1 to 10.0.0.2.
func ip(protocol byte, payload ...byte) []byte {
	b := append([]byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2}, payload...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}

func tcp(flags byte, seq, ack uint32, payload ...byte) []byte {
	b := make([]byte, tcpHeader)
	binary.BigEndian.PutUint16(b, 1000)
	binary.BigEndian.PutUint16(b[2:], 2000)
	binary.BigEndian.PutUint32(b[4:], seq)
	binary.BigEndian.PutUint32(b[8:], ack)
	b[12], b[13] = 0x50, flags
	return ip(protoTCP, append(b, payload...)...)
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	fragment := ip(17, make([]byte, 16)...)
	fragment[7] = 1
	for name, c := range map[string]struct {
		packet   []byte
		protocol byte   // of the answer; 0: none
		seq, ack uint32 // of a TCP answer
	}{
		"SYN":              {tcp(tcpSYN, 7, 0), protoTCP, 0, 8},
		"data":             {tcp(tcpACK, 7, 99, 1, 2, 3), protoTCP, 99, 0},
		"data without ACK": {tcp(tcpFIN, 7, 0, 1, 2, 3), protoTCP, 0, 11},
		"RST":              {tcp(tcpRST, 7, 0), 0, 0, 0},
		"cut short":        {tcp(tcpSYN, 7, 0)[:30], 0, 0, 0},
		"UDP":              {ip(17, make([]byte, 20)...), protoICMP, 0, 0},
		"ping":             {ip(protoICMP, 8, 0, 0, 0, 0, 0, 0, 0), protoICMP, 0, 0},
		"ICMP error":       {ip(protoICMP, 3, 3, 0, 0, 0, 0, 0, 0), 0, 0, 0},
		"later fragment":   {fragment, 0, 0, 0},
		"not IPv4":         {make([]byte, 40), 0, 0, 0},
		"nothing":          {nil, 0, 0, 0},
		"a long header":    {append([]byte{0x4f}, make([]byte, 30)...), 0, 0, 0},
	} {
		got := refusal(nil, c.packet)
		if c.protocol == 0 {
			if got != nil {
				t.Errorf("%s: answered with %x", name, got)
			}
			continue
		}
		if len(got) < ipHeader || int(binary.BigEndian.Uint16(got[2:])) != len(got) || got[9] != c.protocol ||
			[4]byte(got[12:]) != [4]byte{10, 0, 0, 2} || [4]byte(got[16:]) != [4]byte{10, 0, 0, 1} {
			t.Errorf("%s: answered with %x", name, got)
			continue
		}
		if fold(sum(0, got[:ipHeader])) != 0 {
			t.Errorf("%s: checksum of the header", name)
		}
		body := got[ipHeader:]
		if c.protocol == protoICMP {
			if body[0] != 3 || body[1] != 3 || fold(sum(0, body)) != 0 || string(body[8:]) != string(c.packet[:28]) {
				t.Errorf("%s: ICMP %x", name, body)
			}
			continue
		}
		seq, ack := binary.BigEndian.Uint32(body[4:]), binary.BigEndian.Uint32(body[8:])
		if seq != c.seq || ack != c.ack || body[13]&tcpRST == 0 || (ack != 0) != (body[13]&tcpACK != 0) ||
			binary.BigEndian.Uint16(body) != 2000 || binary.BigEndian.Uint16(body[2:]) != 1000 {
			t.Errorf("%s: TCP %x", name, body)
		}
		if fold(sum(sum(0, got[12:20])+protoTCP+uint32(len(body)), body)) != 0 {
			t.Errorf("%s: checksum of TCP", name)
		}
	}
}

func TestBegins(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		packet []byte
		want   bool
	}{
		"SYN":           {tcp(tcpSYN, 7, 0), true},
		"its answer":    {tcp(tcpSYN|tcpACK, 7, 8), false},
		"data":          {tcp(tcpACK, 7, 99, 1, 2, 3), false},
		"cut short":     {tcp(tcpSYN, 7, 0)[:30], false},
		"UDP":           {ip(protoUDP, make([]byte, 20)...), true},
		"ping":          {ip(protoICMP, 8, 0, 0, 0, 0, 0, 0, 0), false},
		"a long header": {append([]byte{0x4f, 9: protoTCP}, make([]byte, 30)...), false},
	} {
		if got := begins(c.packet); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
