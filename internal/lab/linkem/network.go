package linkem

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Client is the node that is this host, outside of all namespaces. Its links are like any others.
const Client = "client"

// Any stands for every node in Set.
const Any = "*"

// ErrNotRoot is returned to users other than root, who may not make network namespaces.
var ErrNotRoot = errors.New("network namespaces and TUN devices need root")

// Options are what a network starts with.
type Options struct {
	Lab   string   // 1 to 10 of a-z and 0-9; names the namespaces and devices
	Nodes []string // 1 to 32 of a-z, 0-9, - and _ each; Client is always there
	Shape Shape    // of every link at first
	Seed  uint64   // of everything random

	// Subnet is the lab's addresses, a /24 that must be free; the zero value takes one that is. A lab whose nodes
	// remember their addresses sets the same subnet again.
	Subnet netip.Prefix

	// KeepNamespaces leaves the namespaces when the network ends, and finds them when it starts, with what runs in
	// them: only the devices and links go and come. Sweep removes them.
	KeepNamespaces bool

	MTU int // 0: 1500
	Log *slog.Logger
}

// Limits of names: a device's has at most 15 bytes.
const (
	maxLab  = 10
	maxNode = 32
)

var word = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$`)

func checkName(what, name string, most int) error {
	if !word.MatchString(name) || len(name) > most || what == "lab" && slices.ContainsFunc([]byte(name), func(c byte) bool { return c == '-' || c == '_' }) {
		return fmt.Errorf("%s name %q: choose 1 to %d of a-z and 0-9", what, name, most)
	}
	return nil
}

func device(lab string) string          { return "cot-" + lab }
func namespace(lab, node string) string { return "cot-" + lab + "-" + node }

// Namespace returns the name of a node's network namespace in the network of a lab; "" for Client, which is this host.
func Namespace(lab, node string) string {
	if node == Client {
		return ""
	}
	return namespace(lab, node)
}

// Network is the network of one lab: it lives in the process that started it, and ends with it.
type Network struct {
	o      Options
	subnet netip.Prefix
	began  time.Time

	threads sync.WaitGroup
	mu      sync.Mutex // guards what follows
	ports   []*port    // Client first
	closed  bool
}

// Start makes the namespaces, devices and links of a lab. The remains of a killed process of the same lab are removed
// first, but for namespaces that Options.KeepNamespaces keeps. It raises GOMAXPROCS: the thread of a port keeps a
// processor of Go's also while it sleeps.
func Start(o Options) (*Network, error) {
	o.MTU = cmp.Or(o.MTU, 1500)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if err := o.validate(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, ErrNotRoot
	}
	unlock, err := lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if o.KeepNamespaces {
		err = awaitNoOwner(o.Lab)
	} else {
		err = sweep(o.Lab)
	}
	if err != nil {
		return nil, err
	}
	n := &Network{o: o, began: time.Now()}
	if n.subnet, err = o.addresses(); err != nil {
		return nil, err
	}
	for _, node := range append([]string{Client}, o.Nodes...) {
		if err := n.add(node); err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", node, err), n.close())
		}
	}
	return n, nil
}

func (o Options) validate() error {
	if err := checkName("lab", o.Lab, maxLab); err != nil {
		return err
	}
	for i, node := range o.Nodes {
		if err := checkName("node", node, maxNode); err != nil {
			return err
		}
		if node == Client || slices.Contains(o.Nodes[:i], node) {
			return fmt.Errorf("node name %q is taken", node)
		}
	}
	if o.Subnet != (netip.Prefix{}) && (!o.Subnet.IsValid() || !o.Subnet.Addr().Is4() || o.Subnet.Bits() != 24 || o.Subnet != o.Subnet.Masked()) {
		return fmt.Errorf("subnet %v: choose a /24 of IPv4", o.Subnet)
	}
	if o.MTU < 576 || o.MTU > 65535 {
		return fmt.Errorf("MTU %d: choose 576 to 65535", o.MTU)
	}
	return o.Shape.Validate()
}

// Add makes one more node, with links to all others.
func (n *Network) Add(node string) error {
	if err := checkName("node", node, maxNode); err != nil {
		return err
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := n.add(node); err != nil {
		return fmt.Errorf("node %s: %w", node, err)
	}
	return nil
}

// firstOctet is the last octet of the first node's address; Client has 1.
const firstOctet = 11

func (n *Network) add(node string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	octet := firstOctet + len(n.ports) - 1
	switch {
	case n.closed:
		return errors.New("the network is closed")
	case n.find(node) != nil:
		return errors.New("there is one of that name")
	case octet > 254:
		return errors.New("a lab's network is full")
	case node == Client:
		octet = 1
	}
	base := n.subnet.Addr().As4()
	p := &port{node: node, octet: byte(octet), tun: -1, wake: -1, clock: n.now, log: n.o.Log, subnet: [3]byte(base[:3])}
	p.prepare(n.o.MTU)
	if err := n.connect(p); err != nil {
		return errors.Join(err, n.disconnect(p))
	}
	for _, other := range n.ports {
		p.join(other, n.o)
		other.join(p, n.o)
	}
	n.ports = append(n.ports, p)
	if procs := len(n.ports) + 4; runtime.GOMAXPROCS(0) < procs {
		runtime.GOMAXPROCS(procs)
	}
	n.threads.Go(p.run)
	return nil
}

// connect makes the device of p, and its namespace unless it is the host.
func (n *Network) connect(p *port) (err error) {
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	open := func() (err error) {
		p.tun, err = openDevice(device(n.o.Lab), n.addr(p), n.o.MTU)
		return err
	}
	if p.node == Client {
		if err = open(); errors.Is(err, unix.EBUSY) {
			return ErrRunning
		}
		return err
	}
	name := namespace(n.o.Lab, p.node)
	if !n.o.KeepNamespaces || !Exists(name) {
		if err := errors.Join(remove(name), create(name)); err != nil {
			return err
		}
	}
	return Enter(name, func() error { return errors.Join(loopbackUp(), open()) })
}

// disconnect undoes what connect did.
func (n *Network) disconnect(p *port) (err error) {
	for _, fd := range []int{p.tun, p.wake} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	if p.node != Client && !n.o.KeepNamespaces {
		err = errors.Join(err, remove(namespace(n.o.Lab, p.node)))
	}
	return err
}

func (p *port) join(to *port, o Options) {
	path := newPath(o.Seed, p.node, to.node, o.Shape)
	path.to = to
	p.paths[to.octet].Store(path)
}

// Close ends the links, and removes the devices and, but with Options.KeepNamespaces, the namespaces' names.
func (n *Network) Close() error {
	unlock, err := lock()
	if err != nil {
		return errors.Join(err, n.close()) // a name too many is better than a thread too many
	}
	defer unlock()
	return n.close()
}

func (n *Network) close() (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil
	}
	n.closed = true
	for _, p := range n.ports {
		p.quit.Store(true)
		p.nudge()
	}
	n.threads.Wait() // each writes to the devices of all others
	for _, p := range n.ports {
		err = errors.Join(err, n.disconnect(p))
	}
	return err
}

// Set changes links while they run: the direction from one node to another, and with Any on a side, all from or to it.
// The other direction keeps its shape. When Set returns, no packet is sent any more by the old shape.
func (n *Network) Set(from, to string, s Shape) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("link %s to %s: %w", from, to, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errors.New("the network is closed")
	}
	for _, node := range []string{from, to} {
		if node != Any && n.find(node) == nil {
			return fmt.Errorf("no node %q", node)
		}
	}
	if from == to && from != Any {
		return fmt.Errorf("node %s has no link to itself", from)
	}
	for _, p := range n.ports {
		if from == Any || from == p.node {
			p.set(n.ports, to, s)
		}
	}
	return n.settle()
}

// settle waits until every thread has seen the last shapes.
func (n *Network) settle() error {
	end := time.Now().Add(5 * time.Second)
	for _, p := range n.ports {
		for p.adopted.Load() != p.asked.Load() {
			if time.Now().After(end) {
				return fmt.Errorf("node %s: its links have not changed after 5 s: is this machine overloaded, or was its device removed?", p.node)
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return nil
}

func (p *port) set(ports []*port, to string, s Shape) {
	for _, other := range ports {
		if other != p && (to == Any || to == other.node) {
			p.paths[other.octet].Load().want.Store(&s)
		}
	}
	p.asked.Add(1)
	p.nudge()
}

// Heal makes every link as it was at first.
func (n *Network) Heal() error { return n.Set(Any, Any, n.o.Shape) }

// Shape returns what the direction from one node to another is like.
func (n *Network) Shape(from, to string) (Shape, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	a, b := n.find(from), n.find(to)
	if a == nil || b == nil || a == b {
		return Shape{}, fmt.Errorf("no link from %q to %q", from, to)
	}
	return *a.paths[b.octet].Load().want.Load(), nil
}

// Stats returns the counters of every direction, ordered by node as they were added, Client first.
func (n *Network) Stats() []Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	var all []Stats
	for _, p := range n.ports {
		for _, other := range n.ports {
			if other != p {
				all = append(all, p.paths[other.octet].Load().stats(p.node, other.node, now))
			}
		}
	}
	return all
}

// Overruns returns how many packets of a node were lost before any link saw them, since it sent faster than this
// machine can pass them on. A measurement during which it grows is one of the machine.
func (n *Network) Overruns(node string) (lost uint64, err error) { return overruns(n.o.Lab, node) }

func overruns(lab, node string) (lost uint64, err error) {
	ns := ""
	if node != Client {
		ns = namespace(lab, node)
	}
	err = do(ns, func() error {
		link, err := netlink.LinkByName(device(lab))
		if err != nil {
			return fmt.Errorf("device of %s: %w", node, err)
		}
		if s := link.Attrs().Statistics; s != nil {
			lost = s.TxDropped
		}
		return nil
	})
	return lost, err
}

// Subnet returns the lab's addresses.
func (n *Network) Subnet() netip.Prefix { return n.subnet }

// Addr returns the address of a node, the zero Addr if there is none.
func (n *Network) Addr(node string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.find(node); p != nil {
		return n.addr(p)
	}
	return netip.Addr{}
}

// Namespace returns the name of a node's network namespace, for Enter and ip netns exec; "" for Client, which is the
// host.
func (n *Network) Namespace(node string) string { return Namespace(n.o.Lab, node) }

// Do calls f on a thread that is in the node's network; see Enter.
func (n *Network) Do(node string, f func() error) error { return do(n.Namespace(node), f) }

func do(namespace string, f func() error) error {
	if namespace == "" {
		return f()
	}
	return Enter(namespace, f)
}

// find needs the mutex.
func (n *Network) find(node string) *port {
	for _, p := range n.ports {
		if p.node == node {
			return p
		}
	}
	return nil
}

func (n *Network) addr(p *port) netip.Addr {
	a := n.subnet.Addr().As4()
	a[3] = p.octet
	return netip.AddrFrom4(a)
}

func (n *Network) now() nanos { return nanos(time.Since(n.began)) }
