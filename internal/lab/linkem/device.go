package linkem

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ringLength is how many packets a device keeps while its port's thread waits for a processor. Further packets are
// lost, and counted by Overruns.
const ringLength = 8192

// openDevice makes a TUN device in the calling thread's network namespace. It goes with the descriptor.
func openDevice(name string, addr netip.Addr, mtu int) (fd int, err error) {
	fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return -1, fmt.Errorf("open /dev/net/tun: %w; run: modprobe tun", err)
	}
	if err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := setUp(fd, name, addr, mtu); err != nil {
		return -1, errors.Join(fmt.Errorf("device %s: %w", name, err), unix.Close(fd))
	}
	return fd, nil
}

func setUp(fd int, name string, addr netip.Addr, mtu int) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeader); err != nil {
		return fmt.Errorf("header in front of packets: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		return fmt.Errorf("offloads: %w", err)
	}
	// The switch has no links for IPv6; without an address of it, nothing is sent there.
	err = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(
		h.LinkSetMTU(link, mtu),
		h.LinkSetTxQLen(link, ringLength),
		h.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}),
		h.LinkSetUp(link),
	)
}

// loopbackUp makes 127.0.0.1 work in a new namespace.
func loopbackUp() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	return h.LinkSetUp(lo)
}

// addresses returns the subnet that was asked for, or else a free one.
func (o Options) addresses() (netip.Prefix, error) {
	if o.Subnet == (netip.Prefix{}) {
		return freeSubnet(o.Lab)
	}
	routes, err := allRoutes()
	if err == nil && !free(o.Subnet, withoutGuards(routes, o.Lab)) {
		err = fmt.Errorf("the lab's addresses, %v, are in use on this machine; ip route show %[1]v tells by what", o.Subnet)
	}
	return o.Subnet, err
}

// Guard keeps packets for a lab's subnet on this machine also while no network has it. Otherwise they would leave by
// its default route, with passwords in them, and strangers would answer. Sweep ends it.
func Guard(lab string, subnet netip.Prefix) error {
	dst := &net.IPNet{IP: subnet.Addr().AsSlice(), Mask: net.CIDRMask(subnet.Bits(), 32)}
	err := netlink.RouteAdd(&netlink.Route{Dst: dst, Type: unix.RTN_UNREACHABLE, Priority: guardMetric(lab)})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("keep %v on this machine: %w", subnet, err)
	}
	return nil
}

// guardMetric makes every other route for the same addresses the better one, and tells the guards of labs apart.
func guardMetric(lab string) int { return 1<<30 | int(hash(lab)&0xffffff) }

func withoutGuards(routes []netlink.Route, lab string) []netlink.Route {
	return slices.DeleteFunc(slices.Clone(routes), func(r netlink.Route) bool { return isGuard(r, lab) })
}

func isGuard(r netlink.Route, lab string) bool {
	return r.Type == unix.RTN_UNREACHABLE && r.Priority == guardMetric(lab)
}

// removeGuards undoes Guard for a lab, whatever its subnets were.
func removeGuards(lab string) error {
	routes, err := allRoutes()
	for _, r := range routes {
		if !isGuard(r, lab) {
			continue
		}
		if e := netlink.RouteDel(&r); e != nil && !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("remove the route for %v: %w", r.Dst, e))
		}
	}
	return err
}

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // never fails
	return h.Sum32()
}

func allRoutes() ([]netlink.Route, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return routes, nil
}

// freeSubnet returns a /24 that no route of this machine touches but a default one. Each lab tries them in an order of
// its own, so that it usually keeps its addresses from start to start.
func freeSubnet(lab string) (netip.Prefix, error) {
	routes, err := allRoutes()
	if err != nil {
		return netip.Prefix{}, err
	}
	first := hash(lab)
	for i := range uint32(256) {
		candidate := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 213, byte((first + i) & 0xff), 0}), 24)
		if free(candidate, withoutGuards(routes, lab)) {
			return candidate, nil
		}
	}
	return netip.Prefix{}, errors.New("every network of 10.213.0.0/16 is in use on this machine")
}

func free(candidate netip.Prefix, routes []netlink.Route) bool {
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		bits, _ := r.Dst.Mask.Size()
		if ok && bits > 0 && netip.PrefixFrom(ip, bits).Overlaps(candidate) {
			return false
		}
	}
	return true
}
