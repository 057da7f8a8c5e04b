package vip

import (
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 7}

// The frames, byte by byte, as the RFCs show them. Another program computed the checksum.
func TestFrames(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")
	for _, c := range []struct {
		name, want string
		got        []byte
	}{
		{"announcement, a request", "ffffffffffff0200000000070806000108000604000102000000" + "00070a000009" + "0000000000000a000009", announcements(mac, four)[0]},
		{"announcement, a reply", "ffffffffffff0200000000070806000108000604000202000000" + "00070a000009" + "0200000000070a000009", announcements(mac, four)[1]},
		{"probe", "ffffffffffff0200000000070806000108000604000102000000" + "000700000000" + "0000000000000a000009", probe(mac, four)},
		{"unsolicited advertisement", "33330000000102000000000786dd6000000000203afffd000000000000000000000000000009ff020000000000000000000000000001" +
			"88005a8520000000fd0000000000000000000000000000090201020000000007", announcements(mac, six)[0]},
		{"duplicate address detection", "3333ff00000902000000000786dd6000000000183aff00000000000000000000000000000000ff0200000000000000000001ff000009" +
			"87007d9500000000fd000000000000000000000000000009", probe(mac, six)},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
	for _, a := range []netip.Addr{four, six} {
		for _, f := range announcements(mac, a) {
			if x, by, ok := claim(f); !ok || x != a || by.String() != mac.String() {
				t.Errorf("%x is read as %v %v %v", f, x, by, ok)
			}
		}
		if x, _, ok := claim(probe(mac, a)); ok {
			t.Errorf("a probe claims %v", x)
		}
	}
}

func FuzzClaim(f *testing.F) {
	for _, a := range []string{"10.0.0.9", "fd00::9"} {
		for _, b := range announcements(mac, netip.MustParseAddr(a)) {
			f.Add(b)
			f.Add(b[:len(b)-9])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, by, ok := claim(b); ok && (!a.IsValid() || len(by) != 6) {
			t.Errorf("%x claims %v for %v", b, a, by)
		}
	})
}
