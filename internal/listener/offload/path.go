package offload

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

// The kernel's path: simple requests and answers of a plain session go from socket to socket inside the kernel, and no
// thread of the listener wakes for them. A session begins on an event loop, and is offloaded between two requests when
// that is expected to pay. It comes back with the first piece that is not simple (program.go), or when the listener
// needs it: for a drain, a cancel request, the end of the session. The record of that time is in its slot: counters,
// and the last request.
//
// The path needs Linux 6.16, CAP_BPF, CAP_PERFMON (for a program that reads at computed offsets) and CAP_NET_ADMIN.
// Without them, loops carry everything.

// Path is the program and the maps of one loop. Everything but the deadline belongs to the loop's goroutine.
type Path struct {
	cfg        Config
	maps       []*ebpf.Map
	directions *ebpf.Map // from the cookie of a socket to its slot and direction
	peers      *ebpf.Map // from slot and direction to the socket that a piece goes to
	program    *ebpf.Program
	memory     []byte  // of the slots. It stays mapped: another goroutine may still hold a slot
	Deadline   *uint64 // of the gate, for the program
	// LogReached is the size of the server's log up to which it was found harmless. An answer that may have ended a
	// commit passes only while the log has that size.
	LogReached *atomic.Uint64
	moving     sync.Mutex // held while the deadline is changed
	events     eventRing
	Free       []uint32
	Slots      int
}

// The sizes of a path.
const (
	maxSessions = 1024    // sessions per loop, at most
	MaxUnread   = 1 << 20 // bytes that a client may leave unread before its session comes back
	maxBuffered = 1 << 20 // bytes of answers that may wait for the loop, before PostgreSQL has to wait
)

// ErrUnavailable is why sessions cannot be offloaded.
var ErrUnavailable = errors.New("no path through the kernel")

// ErrUnsupported is beside ErrUnavailable where no process of this machine could have sessions offloaded.
var ErrUnsupported = errors.New("this machine cannot have one")

// Config is what a path needs to know.
type Config struct {
	Sessions int                  // how many sessions there may be
	Gate     func() time.Duration // returns the deadline of the gate, CLOCK_BOOTTIME; nil: no gate
	Woken    func(slot uint32)    // is called for the slot of each session that came back
	Log      int                  // descriptor of the server's log, a file in memory; 0: there is none, and no answer of a guarded session passes
}

// New loads the program and its maps. It fails where the kernel, or this process's rights, do not allow that; sessions
// are then relayed by the loop.
func New(cfg Config) (k *Path, err error) {
	k = &Path{cfg: cfg}
	defer func() {
		if err != nil {
			k.Close()
			k, err = nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}()
	if err = supported(); err != nil {
		return k, err
	}
	n := uint32(min(maxSessions, max(16, cfg.Sessions)))
	k.directions = k.newMap(&err, ebpf.MapSpec{Name: "coterie_ways", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 4 * n})
	k.peers = k.newMap(&err, ebpf.MapSpec{Name: "coterie_peers", Type: ebpf.SockHash, KeySize: 4, ValueSize: 4, MaxEntries: 3 * n})
	slots := k.newMap(&err, ebpf.MapSpec{Name: "coterie_slots", Type: ebpf.Array, KeySize: 4, ValueSize: slotSize, MaxEntries: n, Flags: unix.BPF_F_MMAPABLE})
	common := k.newMap(&err, ebpf.MapSpec{Name: "coterie_common", Type: ebpf.Array, KeySize: 4, ValueSize: commonSize, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	ring := k.newMap(&err, ebpf.MapSpec{Name: "coterie_bell", Type: ebpf.RingBuf, MaxEntries: eventRingSize})
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
	k.Deadline = (*uint64)(unsafe.Pointer(&page[0]))                         //nolint:gosec // the mapping is a page
	k.LogReached = (*atomic.Uint64)(unsafe.Pointer(&page[commonLogReached])) //nolint:gosec // the mapping is a page
	logSizeAt := (*atomic.Uint64)(unsafe.Pointer(&page[commonLogSizeAt]))    //nolint:gosec // the mapping is a page
	k.LogReached.Store(^uint64(0))
	if cfg.Log > 0 {
		at, err := sizeAddress(cfg.Log)
		if err != nil {
			return k, err
		}
		logSizeAt.Store(at)
	}
	if err = k.events.open(ring.FD()); err != nil {
		return k, err
	}
	k.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "coterie_relay", Type: ebpf.SkSKB, AttachType: ebpf.AttachSkSKBVerdict, License: license,
		Instructions: program(descriptors{ways: k.directions.FD(), slots: slots.FD(), peers: k.peers.FD(), common: common.FD(), bell: ring.FD()}),
	})
	if err != nil {
		return k, fmt.Errorf("loading the program: %w", err)
	}
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: k.peers.FD(), Program: k.program, Attach: ebpf.AttachSkSKBVerdict})
	if err != nil {
		return k, fmt.Errorf("attaching the program: %w", err)
	}
	for i := n; i > 0; i-- {
		k.Free = append(k.Free, i-1)
	}
	k.Slots = int(n)
	if err = k.selfTest(); err != nil {
		return k, err
	}
	return k, nil
}

func (k *Path) newMap(failed *error, spec ebpf.MapSpec) *ebpf.Map {
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

// Close removes the program. Sessions that it still carries are closed.
func (k *Path) Close() {
	if k.program != nil {
		_ = k.program.Close()
	}
	k.events.close()
	for _, m := range k.maps {
		_ = m.Close()
	}
}

// supported reports why this kernel cannot be used; nil if it can. Before 6.16 a socket's backlog could lose what did
// not fit into the socket at once, and be freed while in use (Linux 7683167196bd, 8259eb0e06d8).
func supported() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	var major, minor int
	release := unix.ByteSliceToString(u.Release[:])
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || major < 6 || major == 6 && minor < 16 {
		return fmt.Errorf("%w: Linux %s, it takes 6.16", ErrUnsupported, release)
	}
	offsets, err := os.ReadFile("/proc/self/timens_offsets") // the program uses the machine's clock
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(offsets)) {
		if f := strings.Fields(line); len(f) == 3 && (f[1] != "0" || f[2] != "0") {
			return fmt.Errorf("%w: a time namespace has a clock of its own", ErrUnsupported)
		}
	}
	return nil
}

// returnFlag marks the entry of peers to which PostgreSQL's remaining bytes go when the loop has to read them.
const returnFlag = 1 << 31

// ErrUnread is why sockets cannot be made known now: bytes that arrived before would be in no counter.
var ErrUnread = errors.New("PostgreSQL has sent something that was not read")

// Add makes two sockets known to the program, which leaves everything to the loop until the slot is armed. sender is
// the cookie of PostgreSQL's end of the connection: bytes that PostgreSQL sends on a Unix socket carry that one.
func (k *Path) Add(client, backend int, sender uint64) (d *Session, err error) {
	if len(k.Free) == 0 {
		return nil, fmt.Errorf("%w: all %d places are taken", ErrUnavailable, k.Slots)
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
	_ = unix.SetsockoptInt(back[0], unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, maxBuffered)
	i := k.Free[len(k.Free)-1]
	k.Free = k.Free[:len(k.Free)-1]
	d = &Session{Slot: slotAt(k.memory, i), Index: i, cookies: []uint64{own, other, sender}, returnEnd: back[0], Returns: back[1]}
	s := d.Slot
	generation := atomic.AddUint32(&s.generation, 1)
	s.AwaitOutside() // a run for an older session has ended now, or will see the new generation
	s.reset()
	for n, cookie := range d.cookies {
		way := uint64(i)<<1 | uint64(min(n, 1)) | uint64(generation)<<32
		if err = k.directions.Update(cookie, directionBytes(way), ebpf.UpdateAny); err != nil {
			break
		}
	}
	if err == nil {
		err = k.peers.Update(i|returnFlag, uint32(d.returnEnd), ebpf.UpdateAny)
	}
	if err == nil && Unread(backend) { // as late as possible: PostgreSQL may send at any time
		err = ErrUnread
	}
	if err == nil {
		err = k.peers.Update(i<<1, uint32(backend), ebpf.UpdateAny)
	}
	if err == nil {
		err = k.peers.Update(i<<1|1, uint32(client), ebpf.UpdateAny)
	}
	if err != nil {
		k.Remove(d)
		_ = unix.Close(d.Returns)
		return nil, fmt.Errorf("lending a session to the kernel: %w", err)
	}
	return d, nil
}

// Unread reports whether bytes wait at a socket to be read, or the end of the stream.
func Unread(fd int) bool {
	var one [1]byte
	_, _, err := unix.Recvfrom(fd, one[:], unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return err == nil
}

// directionBytes encodes a direction as the program reads it: two words, the lower one first.
func directionBytes(way uint64) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(way))
	return binary.NativeEndian.AppendUint32(b, uint32(way>>32))
}

// Remove takes a session out of the kernel. Bytes that were not read from its sockets are lost.
func (k *Path) Remove(d *Session) {
	d.Slot.Disarm()
	for _, cookie := range d.cookies {
		_ = k.directions.Delete(cookie)
	}
	_ = k.peers.Delete(d.Index << 1)
	_ = k.peers.Delete(d.Index<<1 | 1)
	_ = k.peers.Delete(d.Index | returnFlag)
	_ = unix.Close(d.returnEnd)
	k.Free = append(k.Free, d.Index)
}

// Ready handles events: sessions have come back.
func (k *Path) Ready(uint32) { k.events.each(k.cfg.Woken) }

// EventFD returns the descriptor that is readable when Ready has to be called.
func (k *Path) EventFD() int { return k.events.fd }

// SetDeadline tells the program the gate's deadline. Any goroutine may call it.
func (k *Path) SetDeadline() {
	if k.cfg.Gate != nil {
		k.moving.Lock() // an older value must not overwrite a newer one
		defer k.moving.Unlock()
		atomic.StoreUint64(k.Deadline, uint64(k.cfg.Gate()))
	}
}
