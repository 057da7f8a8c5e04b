package uring

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is an io_uring that writes to many sockets in one system call, without waiting. A process that a write wakes
// does not run before the call ends, so a loop is not suspended between two of its writes
// (docs/adr/0073-writes-together.md). The layouts are the same as in the kernel's linux/io_uring.h. All operations are
// complete when the system call returns.
type Ring struct {
	fd            int
	rings, slots  []byte // mapped memory: the indices with the results, and the calls
	taken, posted *uint32
	read, ended   *uint32
	calls         []ringCall
	results       []ringResult
}

// Write is one write and its result.
type Write struct {
	By  Writer // nil: it is no longer needed
	FD  int
	B   []byte
	N   int
	Err error // EAGAIN: nothing fitted
}

// Writer receives the results of its writes.
type Writer interface{ Wrote(w *Write) }

// Size is how many writes fit into one system call.
const Size = 64

const (
	ringSubmitAll  = 1 << 7 // a call that fails does not stop the others; Linux 5.18
	ringOneMapping = 1 << 0
	ringWaits      = 1 << 0
	ringSend       = 26
	ringCallsAt    = 0x10000000
)

// ringCall is an io_uring_sqe.
type ringCall struct {
	what, flags uint8
	_           uint16
	fd          int32
	_           uint64
	address     uint64
	length, how uint32
	mark        uint64
	_, _, _     uint64
}

// ringResult is an io_uring_cqe.
type ringResult struct {
	mark uint64
	n    int32 // as the system call would have returned
	_    uint32
}

// ringParams is an io_uring_params.
type ringParams struct {
	calls, results, flags, _, _, features, _, _, _, _ uint32
	call                                              struct {
		head, tail, mask, entries, flags, dropped, order, _ uint32
		_                                                   uint64
	}
	result struct {
		head, tail, mask, entries, overflow, list, flags, _ uint32
		_                                                   uint64
	}
}

// New fails if the kernel is older than 5.18 or does not allow io_uring.
func New() (_ *Ring, err error) {
	p := ringParams{flags: ringSubmitAll}
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, Size, uintptr(unsafe.Pointer(&p)), 0) //nolint:gosec // the kernel fills p
	if errno != 0 {
		return nil, fmt.Errorf("io_uring_setup: %w", errno)
	}
	r := &Ring{fd: int(fd)}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if p.features&ringOneMapping == 0 || p.calls != Size {
		return nil, fmt.Errorf("io_uring_setup: %w", unix.ENOTSUP)
	}
	length := max(p.call.order+p.calls*4, p.result.list+p.results*uint32(unsafe.Sizeof(ringResult{})))
	if r.rings, err = unix.Mmap(r.fd, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("the ring's memory: %w", err)
	}
	if r.slots, err = unix.Mmap(r.fd, ringCallsAt, Size*int(unsafe.Sizeof(ringCall{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("the ring's memory: %w", err)
	}
	at := func(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) } //nolint:gosec // the kernel's memory, which lives as long as the ring
	r.taken, r.posted, r.read, r.ended = at(p.call.head), at(p.call.tail), at(p.result.head), at(p.result.tail)
	r.calls = unsafe.Slice((*ringCall)(unsafe.Pointer(&r.slots[0])), Size)                      //nolint:gosec // the kernel's memory, which lives as long as the ring
	r.results = unsafe.Slice((*ringResult)(unsafe.Pointer(&r.rings[p.result.list])), p.results) //nolint:gosec // the kernel's memory, which lives as long as the ring
	order := unsafe.Slice(at(p.call.order), Size)                                               //nolint:gosec // the kernel's memory, which lives as long as the ring
	for i := range order {
		order[i] = uint32(i)
	}
	return r, nil
}

// Close ends the ring. Writes that are under way are waited for by the kernel.
func (r *Ring) Close() {
	_ = unix.Munmap(r.rings)
	_ = unix.Munmap(r.slots)
	_ = unix.Close(r.fd)
}

// Write writes what each socket takes now, and sets the results. list has at most Size entries.
func (r *Ring) Write(list []Write) {
	began := *r.posted
	for i := range list {
		w := &list[i]
		w.N, w.Err = 0, unix.EAGAIN // unless the kernel reports a result
		r.calls[(began+uint32(i))%Size] = ringCall{
			what: ringSend, fd: int32(w.FD), address: uint64(uintptr(unsafe.Pointer(&w.B[0]))), length: uint32(len(w.B)), //nolint:gosec // the kernel reads b
			how: unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL, mark: uint64(i),
		}
	}
	atomic.StoreUint32(r.posted, began+uint32(len(list)))
	_, _, _ = unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(len(list)), 0, 0, 0, 0)
	taken := atomic.LoadUint32(r.taken)
	atomic.StoreUint32(r.posted, taken) // the kernel may have left some for lack of memory
	for left := int(taken - began); ; {
		at, end := *r.read, atomic.LoadUint32(r.ended)
		for ; at != end; at, left = at+1, left-1 {
			c := r.results[at%uint32(len(r.results))]
			if w := &list[c.mark]; c.n < 0 {
				w.Err = unix.Errno(-c.n)
			} else {
				w.N, w.Err = int(c.n), nil
			}
		}
		atomic.StoreUint32(r.read, at)
		if left == 0 {
			return
		}
		// A call that must not wait has ended already: this is for a kernel that posts the result a moment later.
		_, _, _ = unix.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, uintptr(left), ringWaits, 0, 0)
	}
}
