package guessing

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// at returns the client at an address.
func at(a string) Client {
	return From(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), 1)))
}

// The 2^64 addresses of an IPv6 network are limited together, since one host has all of them.
func TestKeys(t *testing.T) {
	for a, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "::ffff:192.0.2.1": "192.0.2.1", "2001:db8:1:2:3::4": "2001:db8:1:2::/64", "2001:db8:1:2:ffff::": "2001:db8:1:2::/64",
		"fe80::1%eth0": "fe80::/64", "2001:db8:1:3::4": "2001:db8:1:3::/64",
	} {
		if got := at(a).Key; got != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
	if got := From(&net.UnixAddr{Net: "unix"}); got != (Client{"local", "local", "local"}) {
		t.Errorf("a socket: %+v", got)
	}
	if got := at("fe80::1%eth0").Host; got != "fe80::1" {
		t.Errorf("a host with a zone: %s", got)
	}
}

// A name is delayed from its first failure on, ever longer, and refused in the end. Another name is not, and a login
// that succeeds ends the delay.
func TestNameIsDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := New(50*time.Millisecond, slog.New(slog.DiscardHandler)), at("192.0.2.1")
		var last time.Duration
		for i := range 4 {
			wait, bad := f.Begin(c, "alice")
			if bad != nil || i > 0 && wait <= last {
				t.Errorf("attempt %d waits %v after %v, %v", i, wait, last, bad)
			}
			last = wait
			f.Failed(c, "alice")
		}
		if wait, bad := f.Begin(c, "bob"); wait != 0 || bad != nil {
			t.Errorf("another name waits %v, %v", wait, bad)
		}
		if wait, bad := f.Begin(at("192.0.2.2"), "alice"); wait != 0 || bad != nil {
			t.Errorf("from another address it waits %v, %v", wait, bad)
		}
		refused := false
		for range 40 {
			_, bad := f.Begin(c, "alice")
			refused = refused || bad != nil && bad.Code == "53300"
			f.Failed(c, "alice")
		}
		if !refused {
			t.Error("attempts without end are admitted")
		}
	})
}

// Many failures of an address delay each name that is not known to log in from there.
func TestSiteIsDelayed(t *testing.T) {
	f, c := New(time.Microsecond, slog.New(slog.DiscardHandler)), at("192.0.2.1")
	f.Succeeded(c, "alice")
	for range 2 * SiteFailures {
		f.Failed(c, "guessed")
	}
	if wait, bad := f.Begin(c, "alice"); wait != 0 || bad != nil {
		t.Errorf("a name without a failure waits %v, %v", wait, bad)
	}
	if wait, bad := f.Begin(c, "bob"); wait == 0 && bad == nil {
		t.Error("a name that never logged in from there waits for nothing")
	}
}

// The log is not flooded, and tells how many lines it lacks.
func TestLines(t *testing.T) {
	var out bytes.Buffer
	f := New(time.Second, slog.New(slog.NewTextHandler(&out, nil)))
	c := at("192.0.2.1")
	for range 1000 {
		f.Log(c, "alice", "postgres", "wrong password")
	}
	f.Log(at("192.0.2.9"), "bob", "postgres", "wrong password")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	if len(lines) > 100 || !strings.Contains(last, "client=192.0.2.9") || strings.Contains(last, "not_logged=0") {
		t.Errorf("%d lines, the last %q", len(lines), last)
	}
}
