package linkem

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testBurst is what a TUN device passes of a connection whose packets have that much payload each.
func testBurst(t *testing.T, payload []byte, each int, flags byte) burst {
	t.Helper()
	const tcp = tcpHeader + 12 // with a timestamp
	b := make([]byte, vnetHeader+ipHeader+tcp, maxBurst)
	b[vnetFlags], b[vnetKind] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, unix.VIRTIO_NET_HDR_GSO_TCPV4
	binary.NativeEndian.PutUint16(b[vnetEach:], uint16(each))
	binary.NativeEndian.PutUint16(b[vnetCSumFrom:], ipHeader)
	binary.NativeEndian.PutUint16(b[vnetCSumAt:], 16)
	ip := b[vnetHeader:]
	ip[0], ip[8], ip[9] = 0x45, 64, protoTCP
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(payload)))
	binary.BigEndian.PutUint16(ip[4:], 0xfffe) // to be carried over
	binary.BigEndian.PutUint16(ip[10:], fold(sum(0, ip[:ipHeader])))
	binary.BigEndian.PutUint32(ip[ipHeader+4:], 0xffff_ff00)
	ip[ipHeader+12], ip[ipHeader+13] = tcp/4<<4, flags
	binary.BigEndian.PutUint16(ip[ipHeader+16:], ^fold(sum(protoTCP+uint32(tcp+len(payload)), ip[12:20])))
	u, ok := newBurst(append(b, payload...))
	if !ok {
		t.Fatal("it was not understood")
	}
	return u
}

// TestCutsMakeTheWhole: in whatever way a burst is cut, the pieces are packets of the same connection that follow each
// other.
func TestCutsMakeTheWhole(t *testing.T) {
	t.Parallel()
	payload := make([]byte, 10_001)
	_, _ = rand.Read(payload)
	const each, flags = 1448, tcpACK | tcpPSH | tcpFIN | tcpCWR
	for together := 1; together <= 7; together++ {
		u := testBurst(t, payload, each, flags)
		if u.packets != 7 {
			t.Fatalf("%d packets", u.packets)
		}
		var got []byte
		dst := make([]byte, 0, maxBurst)
		for first := 0; first < u.packets; first += together {
			count := min(together, u.packets-first)
			b := u.cut(dst, first, count)
			ip := b[vnetHeader:]
			if want := u.size(first, count) - (count-1)*u.headers; len(ip) != want || int(binary.BigEndian.Uint16(ip[2:])) != want {
				t.Fatalf("%d from %d: %d bytes, %d by its header, want %d", count, first, len(ip), binary.BigEndian.Uint16(ip[2:]), want)
			}
			if seq := binary.BigEndian.Uint32(ip[ipHeader+4:]); seq != 0xffff_ff00+uint32(len(got)) {
				t.Errorf("%d from %d: sequence number %x", count, first, seq)
			}
			if id := binary.BigEndian.Uint16(ip[4:]); id != uint16(0xfffe+first) {
				t.Errorf("%d from %d: id %x", count, first, id)
			}
			want := byte(tcpACK)
			if first == 0 {
				want |= tcpCWR
			}
			if first+count == u.packets {
				want |= tcpPSH | tcpFIN
			}
			if ip[ipHeader+13] != want {
				t.Errorf("%d from %d: flags %x, want %x", count, first, ip[ipHeader+13], want)
			}
			if single := b[vnetKind] == unix.VIRTIO_NET_HDR_GSO_NONE; single != (count == 1) {
				t.Errorf("%d from %d: kind %d", count, first, b[vnetKind])
			}
			got = append(got, ip[u.headers:]...)
			checkSums(t, b)
		}
		if !bytes.Equal(got, payload) {
			t.Errorf("%d together: the payload is another", together)
		}
	}
}

// checkSums completes the checksum as a receiver would and verifies it, with that of the IP header.
func checkSums(t *testing.T, b []byte) {
	t.Helper()
	complete(b)
	ip := b[vnetHeader:]
	if fold(sum(0, ip[:ipHeader])) != 0 {
		t.Error("the checksum of the IP header is wrong")
	}
	if fold(sum(sum(protoTCP+uint32(len(ip)-ipHeader), ip[12:20]), ip[ipHeader:])) != 0 {
		t.Error("the checksum of the TCP segment is wrong")
	}
	if !bytes.Equal(b[:vnetHeader], make([]byte, vnetHeader)) {
		t.Errorf("%x is left in front of a complete packet", b[:vnetHeader])
	}
}

func TestNewBurstRefuses(t *testing.T) {
	t.Parallel()
	whole := testBurst(t, make([]byte, 3000), 1448, tcpACK).b
	for name, b := range map[string][]byte{
		"nothing":             {},
		"half a header":       whole[:vnetHeader+ipHeader-1],
		"IPv6":                append(append([]byte{}, whole[:vnetHeader]...), 0x60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
		"half of TCP's":       whole[:vnetHeader+ipHeader+tcpHeader-1],
		"no room for IP's":    func() []byte { c := bytes.Clone(whole); c[vnetHeader] = 0x44; return c }(),
		"no room for TCP's":   func() []byte { c := bytes.Clone(whole); c[vnetHeader+ipHeader+12] = 0; return c }(),
		"several, but of UDP": func() []byte { c := bytes.Clone(whole); c[vnetHeader+9] = protoUDP; return c }(),
	} {
		if u, ok := newBurst(b); ok {
			t.Errorf("%s was taken for %d packets", name, u.packets)
		}
	}
}

func TestTogether(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		s    Shape
		want int
	}{
		{Shape{RateBits: 1_000_000_000}, 8},
		{Shape{RateBits: 100_000_000}, 1},
		{Shape{RateBits: 10_000_000_000}, 83},
		{Shape{RateBits: 1_000_000_000, Loss: 0.01}, 1},
		{Shape{Delay: time.Millisecond, Jitter: time.Millisecond}, 1},
		{Shape{Delay: time.Millisecond}, maxBurst},
	} {
		if got := c.s.together(1500); got != c.want {
			t.Errorf("%v: %d packets at once, want %d", c.s, got, c.want)
		}
	}
}

// TestStreamsArriveWhole holds that a stream whose packets are cut, delayed, lost, doubled, reordered and damaged is
// the same at its end.
func TestStreamsArriveWhole(t *testing.T) {
	n := start(t, Shape{}, "n1", "n2")
	l := listen(t, n, "n2")
	for _, s := range []Shape{
		{},
		{Delay: time.Millisecond},
		Profiles["metro"],
		{Delay: time.Millisecond, Loss: 0.005, Duplicate: 0.02, Reorder: 0.01, Corrupt: 0.005},
		{Corrupt: 0.01},
	} {
		mustSet(t, n, Any, Any, s)
		sent := make([]byte, 2<<20)
		_, _ = rand.Read(sent)
		c, err := dial(n, "tcp4", l.Addr().String(), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			_ = c.Close()
			done <- err
		}()
		r, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.SetDeadline(time.Now().Add(time.Minute))
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%v: %d of %d bytes, the same: %v, %v", s, len(got), len(sent), bytes.Equal(got, sent), err)
		}
		_ = r.Close()
		if err := <-done; err != nil {
			t.Errorf("%v: %v", s, err)
		}
	}
}
