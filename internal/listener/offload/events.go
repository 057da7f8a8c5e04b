package offload

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// eventRing is the ring buffer (BPF_MAP_TYPE_RINGBUF, Linux Documentation/bpf/ringbuf.rst) by which the program
// reports sessions that have come back. A session is reported once or twice before it is handled, so the size
// suffices for all slots.
type eventRing struct {
	fd       int
	consumer []byte // a page with the position of the reader
	rest     []byte // a page with the position of the writer, and the records
}

const (
	eventRingSize   = 4 * maxSessions * 16
	recordBusy      = 1 << 31
	recordDiscarded = 1 << 30
	recordHeader    = 8
)

func (b *eventRing) open(fd int) (err error) {
	page := os.Getpagesize()
	if b.consumer, err = unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mapping the bell: %w", err)
	}
	if b.rest, err = unix.Mmap(fd, int64(page), page+2*eventRingSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mapping the bell: %w", err)
	}
	b.fd = fd
	return nil
}

func (b *eventRing) close() {
	for _, m := range [][]byte{b.consumer, b.rest} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	b.consumer, b.rest = nil, nil
}

// each calls f with every slot that was reported.
func (b *eventRing) each(f func(slot uint32)) {
	heard := (*uint64)(unsafe.Pointer(&b.consumer[0])) //nolint:gosec // the mapping is a page
	rung := (*uint64)(unsafe.Pointer(&b.rest[0]))      //nolint:gosec // the mapping begins with a page
	data := b.rest[os.Getpagesize():]
	for at := atomic.LoadUint64(heard); at < atomic.LoadUint64(rung); {
		from := data[at%eventRingSize:]
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&from[0]))) //nolint:gosec // records are aligned
		if head&recordBusy != 0 {
			return // another event follows when the record is written
		}
		if head&recordDiscarded == 0 {
			f(*(*uint32)(unsafe.Pointer(&from[recordHeader]))) //nolint:gosec // records are aligned
		}
		at += (uint64(head&^(recordBusy|recordDiscarded)) + recordHeader + 7) &^ 7
		atomic.StoreUint64(heard, at)
	}
}
