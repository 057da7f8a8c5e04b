package listener

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The kernel's path: requests and answers of a plain session that need no decision go from socket to socket inside the kernel, and nobody
// of the listener wakes for them. A session begins on an event loop, is lent to the kernel between two requests when it has asked often
// enough for that to pay, and comes back with the first piece that is not of the plainest kind (kernelprogram.go), or when somebody calls:
// a drain, a cancel request, the end of the session. What it did meanwhile is entered into its books then: counts, and the last request, which are in its slot.
//
// It takes Linux 6.16, CAP_BPF, CAP_PERFMON (for a program that reads at places it has computed) and CAP_NET_ADMIN; without, loops carry
// everything as before.

// shortcut is what a loop has in the kernel. But for deadline it belongs to the loop's goroutine.
type shortcut struct {
	loop     *loop
	maps     []*ebpf.Map
	ways     *ebpf.Map // from the cookie of a socket to its slot and direction
	peers    *ebpf.Map // from slot and direction to the socket where a piece goes
	program  *ebpf.Program
	memory   []byte     // of slots. It stays mapped: whoever looks at a session may still have a slot in hand
	deadline *uint64    // of the gate, for the program
	moving   sync.Mutex // held while it is moved
	bell     bell
	free     []uint32
	pumps    []*pump // by slot
}

const (
	kernelSlots  = 1024             // for each loop, at most
	kernelUnread = 1 << 20          // bytes that a client may leave unread before its session comes back
	kernelBuffer = 1 << 20          // bytes of answers that wait for the loop at most, before PostgreSQL has to
	kernelStuck  = 10 * time.Second // for writing what a socket has room for, on a machine that is busy
	kernelTick   = 20 * time.Millisecond
	// A session is lent when it has asked kernelAfter times, and one that comes back soon has to ask twice as often each time.
	kernelAfter    = 8
	kernelAfterMax = 1024
	kernelPays     = 16 // requests
)

// errKernelPath is why sessions are not lent to the kernel.
var errKernelPath = errors.New("no path through the kernel")

func newShortcut(l *loop) (k *shortcut, err error) {
	if err := kernelFit(); err != nil {
		return nil, err
	}
	k = &shortcut{loop: l}
	defer func() {
		if err != nil {
			k.close()
			k, err = nil, fmt.Errorf("%w: %w", errKernelPath, err)
		}
	}()
	n := uint32(min(kernelSlots, max(16, l.srv.cfg.Limits.Connections)))
	k.ways = k.newMap(&err, ebpf.MapSpec{Name: "coterie_ways", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 4 * n})
	k.peers = k.newMap(&err, ebpf.MapSpec{Name: "coterie_peers", Type: ebpf.SockHash, KeySize: 4, ValueSize: 4, MaxEntries: 3 * n})
	slots := k.newMap(&err, ebpf.MapSpec{Name: "coterie_slots", Type: ebpf.Array, KeySize: 4, ValueSize: slotSize, MaxEntries: n, Flags: unix.BPF_F_MMAPABLE})
	common := k.newMap(&err, ebpf.MapSpec{Name: "coterie_common", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	ring := k.newMap(&err, ebpf.MapSpec{Name: "coterie_bell", Type: ebpf.RingBuf, MaxEntries: bellSize})
	if err != nil {
		return k, err
	}
	if k.memory, err = unix.Mmap(slots.FD(), 0, int(n)*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return k, fmt.Errorf("mapping slots: %w", err)
	}
	page, err := unix.Mmap(common.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return k, fmt.Errorf("mapping the deadline: %w", err)
	}
	k.deadline = (*uint64)(unsafe.Pointer(&page[0])) //nolint:gosec // the mapping is a page
	if err = k.bell.open(ring.FD()); err != nil {
		return k, err
	}
	k.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "coterie_relay", Type: ebpf.SkSKB, AttachType: ebpf.AttachSkSKBVerdict, License: "Apache-2.0",
		Instructions: program(k.ways.FD(), slots.FD(), k.peers.FD(), common.FD(), ring.FD()),
	})
	if err != nil {
		return k, fmt.Errorf("loading the program: %w", err)
	}
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: k.peers.FD(), Program: k.program, Attach: ebpf.AttachSkSKBVerdict})
	if err != nil {
		return k, fmt.Errorf("attaching the program: %w", err)
	}
	for i := n; i > 0; i-- {
		k.free = append(k.free, i-1)
	}
	k.pumps = make([]*pump, n)
	if err = k.try(); err != nil {
		return k, err
	}
	return k, nil
}

func (k *shortcut) newMap(failed *error, spec ebpf.MapSpec) *ebpf.Map {
	if *failed != nil {
		return nil
	}
	m, err := ebpf.NewMap(&spec)
	if err != nil {
		*failed = fmt.Errorf("making %s: %w", spec.Name, err)
		return nil
	}
	k.maps = append(k.maps, m)
	return m
}

func (k *shortcut) close() {
	if k.program != nil {
		_ = k.program.Close()
	}
	k.bell.close()
	for _, m := range k.maps {
		_ = m.Close()
	}
}

// kernelFit says whether this kernel is one to which sessions may be lent. Before 6.16 a socket's backlog could lose what did not fit into
// the socket at once, and be freed under its hands (Linux 7683167196bd, 8259eb0e06d8).
func kernelFit() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("%w: %w", errKernelPath, err)
	}
	var major, minor int
	release := unix.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 16 {
		return fmt.Errorf("%w: Linux %s, it takes 6.16", errKernelPath, release)
	}
	offsets, err := os.ReadFile("/proc/self/timens_offsets") // the program has the machine's clock
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %w", errKernelPath, err)
	}
	for line := range strings.Lines(string(offsets)) {
		if f := strings.Fields(line); len(f) == 3 && (f[1] != "0" || f[2] != "0") {
			return fmt.Errorf("%w: a time namespace has a clock of its own", errKernelPath)
		}
	}
	return nil
}

// wayBack is where what is left to the loop goes from PostgreSQL's socket.
const wayBack = 1 << 31

// insert makes two sockets known to the program, which leaves everything to the loop until the slot is armed. sender is the cookie by which
// PostgreSQL's end of the connection is known: what it sends on a Unix socket carries that one.
func (k *shortcut) insert(client, backend int, sender uint64) (d *crossing, err error) {
	if len(k.free) == 0 {
		return nil, fmt.Errorf("%w: all %d places are taken", errKernelPath, len(k.pumps))
	}
	own, err := unix.GetsockoptUint64(client, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return nil, fmt.Errorf("cookie of a client: %w", err)
	}
	other, err := unix.GetsockoptUint64(backend, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return nil, fmt.Errorf("cookie of a backend: %w", err)
	}
	back, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("sockets for what comes back: %w", err)
	}
	_ = unix.SetsockoptInt(back[0], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, kernelBuffer)
	i := k.free[len(k.free)-1]
	k.free = k.free[:len(k.free)-1]
	d = &crossing{slot: slotAt(k.memory, i), index: i, cookies: []uint64{own, other, sender}, back: back[0], returns: back[1]}
	s := d.slot
	generation := atomic.AddUint32(&s.generation, 1)
	s.awaitOutside() // who came by an older one has left now, or will see the new one
	*s = slot{generation: generation}
	for n, cookie := range d.cookies {
		way := uint64(i)<<1 | uint64(min(n, 1)) | uint64(generation)<<32
		if err = k.ways.Update(cookie, wayBytes(way), ebpf.UpdateAny); err != nil {
			break
		}
	}
	if err == nil {
		err = k.peers.Update(i|wayBack, uint32(d.back), ebpf.UpdateAny)
	}
	if err == nil {
		err = k.peers.Update(i<<1, uint32(backend), ebpf.UpdateAny)
	}
	if err == nil {
		err = k.peers.Update(i<<1|1, uint32(client), ebpf.UpdateAny)
	}
	if err != nil {
		k.remove(d)
		_ = unix.Close(d.returns)
		return nil, fmt.Errorf("lending a session to the kernel: %w", err)
	}
	return d, nil
}

// wayBytes is a way as the program reads it: two words, the lower one first.
func wayBytes(way uint64) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(way))
	return binary.NativeEndian.AppendUint32(b, uint32(way>>32))
}

// remove takes a session out of the kernel. What its sockets have not been read is lost with them.
func (k *shortcut) remove(d *crossing) {
	d.slot.disarm()
	for _, cookie := range d.cookies {
		_ = k.ways.Delete(cookie)
	}
	_ = k.peers.Delete(d.index << 1)
	_ = k.peers.Delete(d.index<<1 | 1)
	_ = k.peers.Delete(d.index | wayBack)
	_ = unix.Close(d.back)
	k.pumps[d.index] = nil
	k.free = append(k.free, d.index)
}

// ready is called when the bell rings: sessions have come back.
func (k *shortcut) ready(uint32) {
	k.bell.each(func(i uint32) {
		if int(i) < len(k.pumps) && k.pumps[i] != nil {
			k.pumps[i].guarded(func() {})()
		}
	})
}
