package vip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	// lifetime is how long an address is given to the kernel. It is renewed at every tick.
	lifetime = 3 * time.Second
	tick     = 500 * time.Millisecond
	// settle is how long another host may still answer for an address that was just taken: the previous holder, until
	// its kernel has removed it. After that the address is a duplicate.
	settle = 2*lifetime + time.Second
	// again is when an address that another host has is tried again. listenFor is how long to listen before that.
	again     = 30 * time.Second
	listenFor = 500 * time.Millisecond
)

// announceAt are the moments after an address was taken at which it is announced to the neighbours. The last ones are
// for neighbours that got another announcement from the previous holder meanwhile.
var announceAt = []time.Duration{0, 200 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second}

// State is the state of an address on this node.
type State string

// The states of an address.
const (
	Offline State = "OFFLINE" // this node is not the primary, or is not in its subnet
	Online  State = "ONLINE"
	Failed  State = "FAILED" // it should be here and is not: see Problem
)

// Address is one virtual address as it is on this node.
type Address struct {
	Prefix  netip.Prefix `json:"prefix"`
	State   State        `json:"state"`
	Device  string       `json:"device,omitempty"`
	Problem string       `json:"problem,omitempty"` // the problem, and the remedy
}

// Config configures a Holder.
type Config struct {
	// Listed returns the addresses of the listener, each with the length of its subnet's prefix.
	Listed func() []netip.Prefix
	// Until returns the instant of CLOCK_BOOTTIME until which this node may hold them; 0 or a past instant: not at
	// all.
	Until func() time.Duration
	// Changed returns a channel that is closed when Listed or Until may have changed. It is read before them.
	Changed func() <-chan struct{}
	// Leaving is called before an address is removed, so that its clients can still get an error. It may take a moment.
	// Nil = clients get none.
	Leaving func(netip.Addr)
	Logger  *slog.Logger // nil = discard
}

// Holder puts addresses up and removes them. Call Run once; Addresses may be called from any goroutine.
type Holder struct {
	cfg   Config
	log   *slog.Logger
	links *netlink.Handle
	shown atomic.Pointer[[]Address]

	// The loop's own:
	held  map[netip.Addr]*holding
	wires map[int]*wire
	ears  sync.WaitGroup // goroutines that listen on the wires
	heard chan heard
	tries map[netip.Addr]retry // addresses that another host has
	said  map[netip.Addr]string

	settle, again time.Duration
}

// holding is an address that is up.
type holding struct {
	link      netlink.Link
	since     time.Duration
	announced int // how many of announceAt are done
}

// retry is when an address is tried again that another host, by, has.
type retry struct {
	at time.Duration
	by net.HardwareAddr
}

// New makes a Holder for the network of the calling thread. The caller owns it, and ends it by ending Run.
func New(cfg Config) (*Holder, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("reach the kernel's network configuration: %w", err)
	}
	h := &Holder{
		cfg: cfg, log: cfg.Logger, links: links, held: map[netip.Addr]*holding{}, wires: map[int]*wire{}, heard: make(chan heard, 64),
		tries: map[netip.Addr]retry{}, said: map[netip.Addr]string{}, settle: settle, again: again,
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.shown.Store(&[]Address{})
	return h, nil
}

// Addresses returns the addresses of the listener as they are on this node. The slice is shared: do not change it.
func (h *Holder) Addresses() []Address { return *h.shown.Load() }

// Run holds the addresses until ctx is done, and removes them then. It returns no error except for a second Run.
func (h *Holder) Run(ctx context.Context) error {
	defer h.links.Close()
	defer func() {
		for a := range h.held {
			h.drop(a, "the node stops")
		}
		h.closeWires()
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := h.cfg.Changed()
		timer.Reset(h.turn())
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-timer.C:
		case x := <-h.heard:
			h.conflict(x)
		}
	}
}

// turn brings the addresses to their wanted state, and returns when to look again.
func (h *Holder) turn() time.Duration {
	listed, until := h.cfg.Listed(), h.cfg.Until()
	left := boottime.Until(until)
	if until == 0 || left <= 0 {
		left = 0
	}
	for a := range h.held {
		if left == 0 || !slices.ContainsFunc(listed, func(p netip.Prefix) bool { return p.Addr() == a }) {
			h.drop(a, "it is not this node's any more")
		}
	}
	shown := make([]Address, 0, len(listed))
	for _, p := range listed {
		shown = append(shown, h.keep(p, left))
	}
	h.shown.Store(&shown)
	if len(h.held) == 0 {
		h.closeWires()
	}
	next := boottime.UntilNext(tick)
	for _, k := range h.held {
		if k.announced < len(announceAt) {
			next = min(next, max(boottime.Until(k.since+announceAt[k.announced]), time.Millisecond))
		}
	}
	if left > 0 {
		next = min(next, left)
	}
	return next
}

// keep adds one address or renews it, if the time allows.
func (h *Holder) keep(p netip.Prefix, left time.Duration) Address {
	out := Address{Prefix: p, State: Offline}
	if left == 0 {
		delete(h.said, p.Addr())
		return out
	}
	link, err := h.place(p)
	switch {
	case err == nil && link == nil:
		out.Problem = fmt.Sprintf("no device of this node is in %s: its clients reach the group by another address, or by this node's own", p.Masked())
	case err == nil:
		if err = h.hold(p.Addr(), link, left); err == nil {
			out.State, out.Device = Online, link.Attrs().Name
		}
	}
	if err != nil {
		out.State, out.Problem = Failed, explain(p.Addr(), err)
	}
	if h.said[p.Addr()] != out.Problem {
		if h.said[p.Addr()] = out.Problem; out.Problem != "" {
			h.log.Warn("virtual address", "address", p, "state", out.State, "problem", out.Problem)
		}
	}
	return out
}

// explain returns what an operator has to do.
func explain(a netip.Addr, err error) string {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Sprintf("this agent may not put up %s (%v): it lacks CAP_NET_ADMIN or CAP_NET_RAW; run it by the service unit that comes with it, "+
			"or start it as root, which keeps both: systemctl restart coterie", a, err)
	}
	return err.Error()
}

// place finds the device whose subnet the address is in; nil: there is none. It fails if another program has
// configured the address here.
func (h *Holder) place(p netip.Prefix) (netlink.Link, error) {
	if k := h.held[p.Addr()]; k != nil {
		return k.link, nil
	}
	links, err := h.links.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the devices: %w", err)
	}
	family := netlink.FAMILY_V4
	if p.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	var found netlink.Link
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp == 0 || l.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := h.links.AddrList(l, family)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, x := range addresses {
			a, _ := netip.AddrFromSlice(x.IP)
			forever := x.ValidLft == 0 || x.ValidLft == math.MaxUint32
			switch a = a.Unmap(); {
			case a == p.Addr() && forever:
				return nil, fmt.Errorf("%s is configured on %s by somebody else, and would stay there when another node is the primary: ip addr del %s/%d dev %[2]s",
					a, l.Attrs().Name, a, prefixLength(x.IPNet))
			case a != p.Addr() && p.Masked().Contains(a) && found == nil:
				found = l
			}
		}
	}
	return found, nil
}

func prefixLength(n *net.IPNet) int {
	ones, _ := n.Mask.Size()
	return ones
}

// hold puts the address on the device or renews its lifetime, and announces it when it is time to.
func (h *Holder) hold(a netip.Addr, link netlink.Link, left time.Duration) error {
	w, err := h.wire(link)
	if err != nil {
		return err
	}
	now := boottime.Now()
	k := h.held[a]
	if k == nil {
		if t, known := h.tries[a]; known && now < t.at {
			return errDuplicate(a, t.by)
		} else if known && h.answered(w, a) {
			return errDuplicate(a, h.tries[a].by)
		}
	}
	// In whole seconds, and never beyond the remaining time: with less than one second left the kernel keeps the
	// previous lifetime.
	if seconds := int(min(left, lifetime) / time.Second); seconds > 0 {
		if err := h.links.AddrReplace(link, lasting(a, seconds)); err != nil {
			if k != nil {
				h.drop(a, "it cannot be renewed")
			}
			return fmt.Errorf("put %s on %s: %w", a, link.Attrs().Name, err)
		}
	} else if k == nil {
		return fmt.Errorf("the lease of this node ends within a second, and %s is not put up for that", a)
	}
	if k == nil {
		k = &holding{link: link, since: now}
		h.held[a] = k
		delete(h.tries, a)
		h.log.Info("virtual address taken", "address", a, "device", link.Attrs().Name)
	}
	for k.announced < len(announceAt) && boottime.Now() >= k.since+announceAt[k.announced] {
		k.announced++
		if err := w.send(append(announcements(w.own, a), probe(w.own, a))...); err != nil {
			return fmt.Errorf("announce %s on %s: %w", a, link.Attrs().Name, err)
		}
	}
	return nil
}

// lasting returns the address alone, without its subnet. No route comes and goes with it, and no connection from here
// uses it as its source (a preferred lifetime of 0). IPv6 need not wait for the kernel's search for duplicates: this
// package searches itself.
func lasting(a netip.Addr, seconds int) *netlink.Addr {
	x := &netlink.Addr{
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}, ValidLft: seconds, PreferedLft: 0,
	}
	if a.Is6() {
		x.Flags = unix.IFA_F_NODAD
	}
	return x
}

// drop removes an address.
func (h *Holder) drop(a netip.Addr, why string) {
	k := h.held[a]
	if h.cfg.Leaving != nil {
		h.cfg.Leaving(a)
	}
	err := h.links.AddrDel(k.link, lasting(a, 0))
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // its lifetime had ended
		h.log.Warn("virtual address not taken off; it ends by itself", "address", a, "device", k.link.Attrs().Name, "within", lifetime, "error", err)
	} else {
		h.log.Info("virtual address taken off", "address", a, "device", k.link.Attrs().Name, "why", why)
	}
	delete(h.held, a)
}

// wire returns the packet socket of the device.
func (h *Holder) wire(link netlink.Link) (*wire, error) {
	index := link.Attrs().Index
	if w := h.wires[index]; w != nil && !w.deaf.Load() {
		return w, nil
	} else if w != nil {
		h.log.Warn("the packet socket of a device has failed, and is opened again", "device", link.Attrs().Name)
		w.close()
		delete(h.wires, index)
	}
	w, err := openWire(index, link.Attrs().HardwareAddr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", link.Attrs().Name, err)
	}
	h.wires[index] = w
	h.ears.Go(func() { w.listen(h.heard) })
	return w, nil
}

func (h *Holder) closeWires() {
	for index, w := range h.wires {
		w.close()
		delete(h.wires, index)
	}
	h.ears.Wait()
}

// conflict handles another host's claim to an address. An address that was just taken is announced again, once its
// time comes. After a while the address is left to the other host, and tried again later.
func (h *Holder) conflict(x heard) {
	k := h.held[x.addr]
	if k == nil || k.link.Attrs().Index != x.index || boottime.Now() < k.since+h.settle {
		return
	}
	h.tries[x.addr] = retry{boottime.Now() + h.again, x.by}
	h.drop(x.addr, "it is answered by "+x.by.String()+", too")
}

func errDuplicate(a netip.Addr, by net.HardwareAddr) error {
	return fmt.Errorf("duplicate address: %s is answered by %s; find that machine with \"arping %[1]s\", take the address from it, or choose another: "+
		"ALTER AVAILABILITY GROUP … REMOVE LISTENER, ADD LISTENER", a, by)
}

// answered asks whether another host still has an address, and reports whether it does.
func (h *Holder) answered(w *wire, a netip.Addr) bool {
	_ = w.send(probe(w.own, a)) // if it is lost, it is tried once more
	until := time.After(listenFor)
	for {
		select {
		case x := <-h.heard:
			if x.addr == a && x.index == w.index {
				h.tries[a] = retry{boottime.Now() + h.again, x.by}
				return true
			}
		case <-until:
			return false
		}
	}
}
