package address

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An IPv6 wildcard leaves IPv4 to an address of its own, and has both without one.
func TestFamily(t *testing.T) {
	for _, c := range []struct{ address, all, want string }{
		{"[::]:5432", "[::]:5432", "tcp"},
		{"[::]:5432", "0.0.0.0:5432, [::]:5432", "tcp6"},
		{"0.0.0.0:5432", "0.0.0.0:5432,[::]:5432", "tcp"},
		{"[::]:5433", "0.0.0.0:5432,[::]:5433", "tcp"},
		{":5432", ":5432", "tcp"},
	} {
		if got := family(c.address, c.all); got != c.want {
			t.Errorf("%s of %s: %s, want %s", c.address, c.all, got, c.want)
		}
	}
}

// Loopback addresses have the simplest congestion control, all others the system's.
func TestCongestionControlOfAddresses(t *testing.T) {
	system, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		t.Skip(err)
	}
	for address, want := range map[string]string{"127.0.0.1:0": "reno", "[::1]:0": "reno", "0.0.0.0:0": strings.TrimSpace(string(system))} {
		l, err := (&net.ListenConfig{Control: forMachine}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err) // without IPv6
			continue
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		host := strings.Replace(strings.Trim(strings.TrimSuffix(address, ":0"), "[]"), "0.0.0.0", "127.0.0.1", 1)
		client, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got string
		if err := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION) }); err != nil {
			t.Fatal(err)
		}
		if err != nil || got != want {
			t.Errorf("accepted at %s: %q, %v, want %q", address, got, err, want)
		}
		_, _, _ = conn.Close(), client.Close(), l.Close()
	}
}
