package admission

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestKeys(t *testing.T) {
	for a, want := range map[string][2]string{
		"192.0.2.1":              {"192.0.2.1", "192.0.2.1"},
		"::ffff:192.0.2.1":       {"192.0.2.1", "192.0.2.1"},
		"2001:db8:1:2:3::4":      {"2001:db8:1:2::/64", "2001:db8:1::/48"},
		"2001:db8:1:3:ffff::":    {"2001:db8:1:3::/64", "2001:db8:1::/48"},
		"fe80::1%eth0":           {"fe80::/64", "fe80::/48"},
		"2001:db8:2:3:ffff::abc": {"2001:db8:2:3::/64", "2001:db8:2::/48"},
	} {
		ap := netip.AddrPortFrom(netip.MustParseAddr(a), 1)
		for _, addr := range []net.Addr{net.TCPAddrFromAddrPort(ap), net.UDPAddrFromAddrPort(ap)} {
			if got := [2]string{Key(addr), Site(addr)}; got != want {
				t.Errorf("%s: %q, want %q", a, got, want)
			}
		}
	}
	if got := Key(&net.UnixAddr{Net: "unix", Name: "@"}); got != "@" {
		t.Errorf("a socket: %q", got)
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget(Rate{PerSecond: 10, Burst: 20}, Rate{PerSecond: 50, Burst: 100}, 1000)
	granted := func(key string, tries int, now time.Duration) (n int) {
		for range tries {
			if b.Spend(key, 1, now) {
				n++
			}
		}
		return n
	}
	if n := granted("flood", 1000, 0); n != 20 {
		t.Errorf("%d of 1000 at once were granted, want 20", n)
	}
	if n := granted("honest", 5, 0); n != 5 {
		t.Errorf("another caller was granted %d of 5", n)
	}
	if n := granted("flood", 1000, time.Second); n != 10 {
		t.Errorf("%d were granted a second later, want 10", n)
	}
	if b.Refused() != 980+990 {
		t.Errorf("%d were refused", b.Refused())
	}
	for range 1000 { // a success costs nothing
		if !b.Spend("busy", 2, 2*time.Second) {
			t.Fatal("a caller that succeeds was refused")
		}
		b.Succeeded("busy", 2)
	}
	all := 0
	for i := range 1000 { // a flood of many callers
		all += granted(fmt.Sprintf("flood %d", i), 10, 3*time.Second)
	}
	if all > 100 {
		t.Errorf("%d of a flood from 1000 callers were granted, want at most 100", all)
	}
	if granted("new", 1, 3*time.Second) != 0 {
		t.Error("an unknown caller was granted more than the budget of all")
	}
	if !b.Known("busy") || b.Known("new") || granted("busy", 5, 3*time.Second) != 5 {
		t.Error("a caller that is known shares the budget of all")
	}
	if n := len(b.callers.at); n > 1000 || b.callers.order.Len() != n {
		t.Errorf("%d callers are remembered", n)
	}
}

// TestBackoff holds that a guesser makes as few attempts whether it waits for answers or not, one after the other or
// side by side.
func TestBackoff(t *testing.T) {
	const first, most = 50 * time.Millisecond, 5 * time.Second
	b := NewBackoff(0, 100)
	for range 100 { // a storm of logins before any failure
		if wait, ok := b.Begin("k", 0, first, most); wait != 0 || !ok {
			t.Fatalf("without a failure: %v, %t", wait, ok)
		}
	}
	attempts := 0
	for now := time.Duration(0); now < time.Minute; now += 5 * time.Millisecond {
		for range 3 { // three at once, and none waits for its answer
			if wait, ok := b.Begin("guesser", now, first, 0); ok && wait == 0 {
				attempts++
				b.Failed("guesser", now, first)
			}
		}
	}
	if attempts < 30 || attempts > 60 {
		t.Errorf("%d attempts in a minute, want one in 1.6 s and a few at first", attempts)
	}
	if wait, ok := b.Begin("guesser", time.Minute, first, most); wait == 0 || !ok {
		t.Errorf("after failures: %v, %t", wait, ok)
	}
	for range 10 {
		_, _ = b.Begin("guesser", time.Minute, first, most)
	}
	if wait, ok := b.Begin("guesser", time.Minute, first, most); ok {
		t.Errorf("more attempts are booked than there is time for: %v", wait)
	}
	if wait, _ := b.Begin("other", time.Minute, first, most); wait != 0 {
		t.Errorf("another caller waits %v", wait)
	}
	if wait, _ := b.Begin("guesser", 3*time.Minute, first, most); wait != 0 {
		t.Errorf("two minutes later it waits %v", wait)
	}
	for i := range 1000 { // others push a guesser out, but never all at once
		b.Failed(fmt.Sprint("spray ", i), 3*time.Minute, first)
		b.Failed("guesser", 3*time.Minute, first)
	}
	if wait, _ := b.Begin("guesser", 3*time.Minute, first, most); wait == 0 {
		t.Error("a guesser is forgotten because others fail, too")
	}
	if len(b.seen.at) > 100 {
		t.Errorf("%d callers are remembered", len(b.seen.at))
	}
}

func TestBackoffWithFreeFailures(t *testing.T) {
	b := NewBackoff(20, 100)
	for range 20 {
		b.Failed("k", 0, 100*time.Millisecond)
		if wait, ok := b.Begin("k", 0, 100*time.Millisecond, 0); wait != 0 || !ok {
			t.Fatalf("within the free failures: %v, %t", wait, ok)
		}
	}
	b.Failed("k", 0, 100*time.Millisecond)
	if wait, _ := b.Begin("k", 0, 100*time.Millisecond, time.Hour); wait != 100*time.Millisecond {
		t.Errorf("beyond them: %v", wait)
	}
}

// TestBlameless holds that a caller is blameless once it has succeeded, and not while one of its failures counts.
func TestBlameless(t *testing.T) {
	b := NewBackoff(0, 100)
	holds := func(now time.Duration, want bool) {
		t.Helper()
		if got := b.Blameless("k", now); got != want {
			t.Errorf("after %v: %t, want %t", now, got, want)
		}
	}
	holds(0, false)
	b.Succeeded("k")
	holds(0, true)
	b.Failed("k", 0, time.Second)
	holds(9*time.Second, false)
	holds(10*time.Second, true)
	for i := range 1000 {
		b.Succeeded(fmt.Sprint("other ", i))
	}
	if holds(10*time.Second, false); len(b.proven.at) > 100 {
		t.Errorf("%d callers are remembered", len(b.proven.at))
	}
}
