package vip

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// patience is long: a busy machine is not a failure.
const patience = 2 * time.Minute

// place is a network namespace with one device on the test's switch.
type place struct {
	t  *testing.T
	ns netns.NsHandle
	nl *netlink.Handle
}

// newPlaces makes n namespaces, all on one bridge. Their addresses are 10.77.0.1 and fd77::1, and so on.
func newPlaces(t *testing.T, n int) []*place {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: virtual addresses are tested in network namespaces, which only root may make")
	}
	hub := newPlace(t)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	hub.must(hub.nl.LinkAdd(bridge), hub.nl.LinkSetUp(bridge))
	var out []*place
	for i := range n {
		p := newPlace(t)
		name := fmt.Sprintf("v%d", i)
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(p.ns))}
		hub.must(hub.nl.LinkAdd(veth))
		port, err := hub.nl.LinkByName(name)
		hub.must(err, hub.nl.LinkSetMaster(port, bridge), hub.nl.LinkSetUp(port))
		for _, a := range []string{"10.77.0.%d/24", "fd77::%d/64"} {
			p.add(fmt.Sprintf(a, i+1))
		}
		p.must(p.nl.LinkSetUp(p.device()))
		out = append(out, p)
	}
	return out
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := netns.New()
		p.ns = ns
		done <- err
	}()
	p.must(<-done)
	nl, err := netlink.NewHandleAt(p.ns, unix.NETLINK_ROUTE)
	p.must(err)
	p.nl = nl
	lo, err := nl.LinkByName("lo")
	p.must(err, nl.LinkSetUp(lo)) // without ::1 the net package assumes that the host has no IPv6
	t.Cleanup(func() { p.nl.Close(); _ = p.ns.Close() })
	return p
}

func (p *place) must(errs ...error) {
	p.t.Helper()
	for _, err := range errs {
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

func (p *place) device() netlink.Link {
	p.t.Helper()
	l, err := p.nl.LinkByName("eth0")
	p.must(err)
	return l
}

func (p *place) add(address string) {
	p.t.Helper()
	a, err := netlink.ParseAddr(address)
	p.must(err)
	a.Flags = unix.IFA_F_NODAD
	p.must(p.nl.AddrAdd(p.device(), a))
}

// has reports whether the address is up here.
func (p *place) has(a netip.Addr) bool {
	p.t.Helper()
	list, err := p.nl.AddrList(p.device(), netlink.FAMILY_ALL)
	p.must(err)
	return slices.ContainsFunc(list, func(x netlink.Addr) bool { return x.IP.Equal(a.AsSlice()) })
}

// neighbour returns the link-layer address of a in this place's neighbour table.
func (p *place) neighbour(a netip.Addr) string {
	p.t.Helper()
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	list, err := p.nl.NeighList(p.device().Attrs().Index, family)
	p.must(err)
	for _, x := range list {
		if x.IP.Equal(a.AsSlice()) {
			return x.HardwareAddr.String()
		}
	}
	return ""
}

// in calls f on a thread in the place's network.
func (p *place) in(f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := netns.Set(p.ns)
		if err == nil {
			f()
		}
		done <- err
	}()
	p.must(<-done)
}

// serve sends its name to every client, on every address of the place.
func (p *place) serve(name string) {
	p.in(func() {
		l, err := net.Listen("tcp", "[::]:7777")
		if err != nil {
			p.t.Error(err)
			return
		}
		p.t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, name)
				_ = c.Close()
			}
		}()
	})
}

// ask connects to the address from here and returns who answers.
func (p *place) ask(a netip.Addr) (who string) {
	p.in(func() {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, 7777).String(), 300*time.Millisecond)
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		b, _ := io.ReadAll(c)
		who = string(b)
	})
	return who
}

// holder is a Holder that runs in a place, with its input.
type holder struct {
	*Holder
	until   atomic.Int64 // CLOCK_BOOTTIME
	mu      sync.Mutex
	changed chan struct{} // guarded by mu
	stop    context.CancelFunc
	ended   chan struct{}
	left    atomic.Int32 // addresses that Leaving was called for
}

func (p *place) hold(change func(*Holder), listed ...netip.Prefix) *holder {
	p.t.Helper()
	h := &holder{changed: make(chan struct{}), ended: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	ready := make(chan error)
	go func() {
		defer close(h.ended)
		runtime.LockOSThread()
		err := netns.Set(p.ns)
		if err == nil {
			h.Holder, err = New(Config{
				Listed: func() []netip.Prefix { return listed }, Until: func() time.Duration { return time.Duration(h.until.Load()) },
				Changed: h.change, Leaving: func(netip.Addr) { h.left.Add(1) },
			})
		}
		if err == nil && change != nil {
			change(h.Holder)
		}
		ready <- err
		if err == nil {
			_ = h.Run(ctx)
		}
	}()
	p.must(<-ready)
	p.t.Cleanup(func() { h.stop(); <-h.ended })
	return h
}

func (h *holder) change() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// lead makes the node the primary for that long; 0: not.
func (h *holder) lead(d time.Duration) {
	h.until.Store(0)
	if d > 0 {
		h.until.Store(int64(boottime.Now() + d))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.changed)
	h.changed = make(chan struct{})
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

var (
	four = netip.MustParsePrefix("10.77.0.99/24")
	six  = netip.MustParsePrefix("fd77::99/64")
	far  = netip.MustParsePrefix("10.78.0.99/24")
)

// The addresses follow the primary, and the neighbours learn it at once.
func TestFollowsThePrimary(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, 3)
	one, two, client := p[0], p[1], p[2]
	one.serve("one")
	two.serve("two")
	a, b := one.hold(nil, four, six, far), two.hold(nil, four, six, far)
	a.lead(time.Hour)
	for _, v := range []netip.Prefix{four, six} {
		waitFor(t, "the first holder answers", func() bool { return client.ask(v.Addr()) == "one" })
	}
	waitFor(t, "a device is found for two of them", func() bool {
		x := a.Addresses()
		return len(x) == 3 && x[0].State == Online && x[0].Device == "eth0" && x[1].State == Online && x[2].State == Offline && strings.Contains(x[2].Problem, "10.78.0.0/24")
	})
	if two.has(four.Addr()) || b.Addresses()[0].State != Offline {
		t.Errorf("both hold it: %+v", b.Addresses())
	}
	began := time.Now()
	a.lead(0)
	b.lead(time.Hour)
	for _, v := range []netip.Prefix{four, six} {
		waitFor(t, "the neighbour's table changes without a question", func() bool { return client.neighbour(v.Addr()) == two.device().Attrs().HardwareAddr.String() })
		waitFor(t, "the second holder answers", func() bool { return client.ask(v.Addr()) == "two" })
	}
	t.Logf("the addresses moved within %v", time.Since(began).Round(time.Millisecond))
	waitFor(t, "the first holder has let go", func() bool { return !one.has(four.Addr()) && !one.has(six.Addr()) && a.left.Load() == 2 })
	b.stop()
	<-b.ended
	if two.has(four.Addr()) || two.has(six.Addr()) {
		t.Error("what has ended still holds an address")
	}
}

// No address outlives the right to it: neither the end of the lease, nor a holder that no longer runs.
func TestEndsWithTheLease(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, 2)
	h := p[0].hold(nil, four, six)
	until := boottime.Now() + 1500*time.Millisecond
	h.lead(1500 * time.Millisecond)
	for _, v := range []netip.Prefix{four, six} {
		waitFor(t, "it is up", func() bool { return p[0].has(v.Addr()) || boottime.Now() > until })
		waitFor(t, "it is gone after the lease", func() bool { return !p[0].has(v.Addr()) })
	}
	t.Logf("gone %v after the lease", (boottime.Now() - until).Round(time.Millisecond))
	// As if the agent had been killed: the address is not renewed, and the kernel removes it.
	for _, v := range []netip.Prefix{four, six} {
		p[1].must(p[1].nl.AddrReplace(p[1].device(), lasting(v.Addr(), 1)))
	}
	began := time.Now()
	waitFor(t, "the kernel has taken it off", func() bool { return !p[1].has(four.Addr()) && !p[1].has(six.Addr()) })
	t.Logf("a lifetime of 1 s ended after %v", time.Since(began).Round(time.Millisecond))
}

// If another host has the address, it is given up and reported, and taken once it is free.
func TestDuplicate(t *testing.T) {
	for _, v := range []netip.Prefix{four, six} {
		t.Run(v.String(), func(t *testing.T) {
			p := newPlaces(t, 2)
			p[1].add(v.String())
			h := p[0].hold(func(h *Holder) { h.settle, h.again = 0, 200*time.Millisecond }, v)
			h.lead(time.Hour)
			other := p[1].device().Attrs().HardwareAddr.String()
			waitFor(t, "the duplicate is seen", func() bool {
				x := h.Addresses()
				return len(x) == 1 && x[0].State == Failed && strings.Contains(x[0].Problem, "duplicate address") && strings.Contains(x[0].Problem, other)
			})
			if p[0].has(v.Addr()) {
				t.Error("it is up all the same")
			}
			gone, err := netlink.ParseAddr(v.String())
			p[1].must(err, p[1].nl.AddrDel(p[1].device(), gone))
			waitFor(t, "it is taken once it is free", func() bool { return h.Addresses()[0].State == Online && p[0].has(v.Addr()) })
		})
	}
}

// A packet socket that has failed is replaced: the duplicate is seen by the next one.
func TestFailedPacketSocketIsReplaced(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, 2)
	p[1].add(four.String())
	d := p[0].device().Attrs()
	h := p[0].hold(func(h *Holder) {
		h.settle = 0
		w, err := openWire(d.Index, d.HardwareAddr)
		if err != nil {
			t.Error(err)
			return
		}
		w.close()
		w.listen(h.heard)
		h.wires[d.Index] = w
		h.cfg.Until = func() time.Duration { return boottime.Now() + time.Hour } // from the first turn on
	}, four)
	waitFor(t, "the duplicate is seen", func() bool {
		x := h.Addresses()
		return len(x) == 1 && x[0].State == Failed && strings.Contains(x[0].Problem, "duplicate address")
	})
}

// An address that an administrator has configured here is left alone.
func TestConfiguredBySomebodyElse(t *testing.T) {
	t.Parallel()
	p := newPlaces(t, 1)
	p[0].add(four.String())
	h := p[0].hold(nil, four)
	h.lead(time.Hour)
	waitFor(t, "it is said", func() bool {
		x := h.Addresses()
		return len(x) == 1 && x[0].State == Failed && strings.Contains(x[0].Problem, "ip addr del 10.77.0.99/24 dev eth0")
	})
	h.stop()
	<-h.ended
	if !p[0].has(four.Addr()) {
		t.Error("it was taken off")
	}
}

// Without the capabilities the error says what to do.
func TestWithoutCapabilities(t *testing.T) {
	p := newPlaces(t, 1)
	h := p[0].hold(func(*Holder) { // on the thread of the Holder, which ends with it
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			t.Error(err)
		}
	}, four)
	h.lead(time.Hour)
	waitFor(t, "it is said", func() bool {
		x := h.Addresses()
		return len(x) == 1 && x[0].State == Failed && strings.Contains(x[0].Problem, "CAP_NET_ADMIN") && strings.Contains(x[0].Problem, "systemctl restart coterie")
	})
}
