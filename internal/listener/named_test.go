package listener

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// The ports of the group's listener come and go while sessions run. One that cannot be opened does not affect the
// others.
func TestNamedPorts(t *testing.T) {
	g := newGroup(t, trusting)
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		return l.Addr().String()
	}
	one, two := free(), free()
	elsewhere := strings.Replace(one, "127.0.0.1", "192.0.2.7", 1) // an address that this machine has not
	failed := g.srv.SetNamed([]string{one, two, elsewhere, g.rw})
	if len(failed) != 1 || failed[g.rw] == nil || !strings.Contains(failed[g.rw].Error(), "address already in use") {
		t.Fatalf("failed: %v", failed)
	}
	conn := g.mustDial(one, "user=postgres")
	g.mustDial(two, "user=postgres")
	if failed := g.srv.SetNamed([]string{two}); len(failed) != 0 {
		t.Fatalf("failed: %v", failed)
	}
	if _, err := g.dial(one, "user=postgres"); err == nil {
		t.Error("a port that was taken away still serves")
	}
	if got := value[string](t, conn, "show cluster_name"); got != "a" {
		t.Errorf("the session of before is at %q", got)
	}
	g.mustDial(two, "user=postgres")
}

// A client whose session has no server at that moment gets the error, too: nothing else would reach it.
func TestLeaveAddressWithoutAServer(t *testing.T) {
	for _, before := range []string{"", "begin"} {
		far, near := farPrimary(t, func(c *Config) { c.ReadWrite = "0.0.0.0:0" })
		_, port, err := net.SplitHostPort(near.rw)
		must(t, err)
		leaves, stays := near.mustDial("127.0.0.9:"+port, "user=postgres"), near.mustDial("127.0.0.1:"+port, "user=postgres")
		near.known()
		near.do(leaves, before)
		near.loses()
		waitFor(t, "both have no server", func() bool { return len(near.srv.Sessions()) == 0 })
		near.srv.LeaveAddress(t.Context(), netip.MustParseAddr("127.0.0.9"), "it moves")
		select {
		case err := <-later(leaves, "select 1"):
			if err == nil || !strings.Contains(err.Error(), "FATAL") || !strings.Contains(err.Error(), "it moves") {
				t.Errorf("after %q it hears %v", before, err)
			}
		case <-time.After(60 * time.Second):
			t.Errorf("after %q it hears nothing", before)
		}
		near.returns(far)
		near.shows(stays, map[string]string{"select 1::text": "1"})
	}
}

// Only clients that are connected to a leaving address get the error.
func TestLeaveAddress(t *testing.T) {
	g := newGroup(t, func(c *Config) { c.Rules, c.ReadWrite = trustAll, "0.0.0.0:0" })
	_, port, err := net.SplitHostPort(g.rw)
	if err != nil {
		t.Fatal(err)
	}
	leaves, stays := g.mustDial("127.0.0.9:"+port, "user=postgres"), g.mustDial("127.0.0.1:"+port, "user=postgres")
	g.srv.LeaveAddress(t.Context(), netip.MustParseAddr("127.0.0.9"), "it moves")
	if n := len(g.srv.Sessions()); n != 1 {
		t.Errorf("%d sessions are left", n)
	}
	if _, err := leaves.Exec(t.Context(), "select 1"); sqlstate(err) != "57P01" || !strings.Contains(err.Error(), "it moves") {
		t.Errorf("who was connected by it: %v", err)
	}
	value[string](t, stays, "show cluster_name")
}
