package vip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// wire is a packet socket on one device. Frames are sent as they are, and claims of neighbours are received.
type wire struct {
	file  *os.File
	index int
	own   net.HardwareAddr
	deaf  atomic.Bool // it receives nothing any more
}

// heard is a claim of an address by another host, on the device of that index.
type heard struct {
	index int
	addr  netip.Addr
	by    net.HardwareAddr
}

// onlyClaims passes only ARP and neighbour advertisements, so that a busy device costs nothing.
var onlyClaims = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: etherARP, SkipTrue: 5},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherIPv6, SkipTrue: 5},
	bpf.LoadAbsolute{Off: headerLen + 6, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: icmp6, SkipTrue: 3},
	bpf.LoadAbsolute{Off: headerLen + ip6Len, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: neighbourAdvertise, SkipTrue: 1},
	bpf.RetConstant{Val: 128},
	bpf.RetConstant{Val: 0},
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 } // on the little-endian machines that Go and PostgreSQL run on

// openWire opens a packet socket in the network of the calling thread. It needs CAP_NET_RAW.
func openWire(index int, own net.HardwareAddr) (*wire, error) {
	if len(own) != 6 {
		return nil, errors.New("the device is no Ethernet: nobody can be told of an address on it; give the node an Ethernet in that subnet (a lab's own links are none)")
	}
	filter, err := bpf.Assemble(onlyClaims)
	if err != nil {
		return nil, err
	}
	// Without a protocol: receives nothing until the filter is set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	program := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: index}),
	)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	return &wire{file: os.NewFile(uintptr(fd), "packet"), index: index, own: own}, nil
}

// listen reports what other hosts claim until the wire is closed, or fails. It drops claims that are not taken.
func (w *wire) listen(to chan<- heard) {
	defer w.deaf.Store(true)
	buffer := make([]byte, 2048)
	for {
		n, err := w.file.Read(buffer)
		if errors.Is(err, unix.ENETDOWN) {
			continue // the device may come back; the next read waits
		}
		if err != nil {
			return
		}
		a, by, ok := claim(buffer[:n])
		if !ok || by.String() == w.own.String() {
			continue
		}
		select {
		case to <- heard{w.index, a, by}:
		default:
		}
	}
}

func (w *wire) send(frames ...[]byte) error {
	var errs []error
	for _, f := range frames {
		_, err := w.file.Write(f)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (w *wire) close() { _ = w.file.Close() }
