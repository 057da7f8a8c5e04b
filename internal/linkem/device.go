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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ringLength is how many packets a device keeps while its port's thread waits for a processor; what exceeds it is lost, and
// counted by Overruns.
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
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return err
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

// freeSubnet returns a /24 that no route of this machine touches but a default one, tried in an order of the lab's own, so that
// a lab keeps its addresses from start to start as a rule.
func freeSubnet(lab string) (netip.Prefix, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list routes: %w", err)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(lab)) // never fails
	for i := range uint32(256) {
		candidate := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 213, byte((h.Sum32() + i) & 0xff), 0}), 24)
		if free(candidate, routes) {
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
