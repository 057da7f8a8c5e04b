package listener

import (
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bell is the ring buffer (BPF_MAP_TYPE_RINGBUF, Linux Documentation/bpf/ringbuf.rst) by which the program says which sessions have come
// back. A session rings once or twice before it is heard, so its size is enough for all slots.
type bell struct {
	fd       int
	consumer []byte // a page with how far it was heard
	rest     []byte // a page with how far it was rung, and what was
}

const (
	bellSize     = 4 * kernelSlots * 16
	bellBusy     = 1 << 31
	bellDiscards = 1 << 30
	bellHead     = 8
)

func (b *bell) open(fd int) (err error) {
	page := os.Getpagesize()
	if b.consumer, err = unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mapping the bell: %w", err)
	}
	if b.rest, err = unix.Mmap(fd, int64(page), page+2*bellSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("mapping the bell: %w", err)
	}
	b.fd = fd
	return nil
}

func (b *bell) close() {
	for _, m := range [][]byte{b.consumer, b.rest} {
		if m != nil {
			_ = unix.Munmap(m)
		}
	}
	b.consumer, b.rest = nil, nil
}

// each calls f with every slot that has rung.
func (b *bell) each(f func(slot uint32)) {
	heard := (*uint64)(unsafe.Pointer(&b.consumer[0])) //nolint:gosec // the mapping is a page
	rung := (*uint64)(unsafe.Pointer(&b.rest[0]))      //nolint:gosec // the mapping begins with a page
	data := b.rest[os.Getpagesize():]
	for at := atomic.LoadUint64(heard); at < atomic.LoadUint64(rung); {
		from := data[at%bellSize:]
		head := atomic.LoadUint32((*uint32)(unsafe.Pointer(&from[0]))) //nolint:gosec // records are aligned
		if head&bellBusy != 0 {
			return // it rings again when it is written
		}
		if head&bellDiscards == 0 {
			f(*(*uint32)(unsafe.Pointer(&from[bellHead]))) //nolint:gosec // records are aligned
		}
		at += (uint64(head&^(bellBusy|bellDiscards)) + bellHead + 7) &^ 7
		atomic.StoreUint64(heard, at)
	}
}
