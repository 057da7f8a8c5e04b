package listener

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// slot is what the kernel's program and the listener share about one session, in memory that both have mapped. Up is from the client to
// PostgreSQL, down the way back.
type slot struct {
	armed      uint32 // 1: the kernel passes pieces on. The listener sets it; both clear it
	flags      uint32
	inside     uint32 // runs of the program that look at the slot now
	generation uint32 // of the slot's sessions
	// What the program has passed on, in pieces and bytes.
	ups, downs, upBytes, downBytes uint64
	// Bytes that it left to the loop, and how many of them the loop had read when it armed the slot.
	upLeft, upTaken, downLeft, downTaken uint64
	downLimit                            uint64 // of downBytes
	logged                               uint32 // bytes of the last request in log; 0: it was answered, and is not there any more
	status                               uint32 // of the last ReadyForQuery
	why                                  uint32 // a session came back
	single                               uint32 // the last request was a Query
	_                                    [slotLog - 104]byte
	log                                  [slotSize - slotLog]byte // the last request that was passed on
}

func slotAt(memory []byte, i uint32) *slot {
	return (*slot)(unsafe.Pointer(&memory[int(i)*slotSize])) //nolint:gosec // slots follow one another in the mapping
}

// disarm has the kernel pass nothing on any more, and returns when that is so: a run of the program takes microseconds. It is false if
// the slot was disarmed before. Everybody may call it.
func (s *slot) disarm() bool {
	was := atomic.SwapUint32(&s.armed, 0)
	s.awaitOutside()
	return was != 0
}

func (s *slot) awaitOutside() {
	for i := 0; atomic.LoadUint32(&s.inside) != 0; i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}
		time.Sleep(20 * time.Microsecond) // whoever is inside was preempted
	}
}

// quiet says that everything that the kernel has passed to PostgreSQL was answered.
func (s *slot) quiet() bool {
	downs := atomic.LoadUint64(&s.downs) // looked at first: it follows
	return atomic.LoadUint64(&s.ups) == downs
}

// crossing is a session whose sockets the kernel's program knows. But for slot it belongs to the loop's goroutine.
type crossing struct {
	slot      *slot
	index     uint32
	cookies   []uint64 // by which the program finds the slot
	back      int      // where the program sends what PostgreSQL has said that is the loop's
	returns   int      // the other end; closed with the session's sockets
	upRead    uint64   // bytes that the loop has read from the client since the program knows it
	downRead  uint64   // the same, from PostgreSQL
	base      uint64   // what the loop has written to the client, but for a constant
	ups       uint64   // pieces and bytes that are in the session's books
	upBytes   atomic.Uint64
	downBytes atomic.Uint64
	began     uint64 // ups when it was armed
}

// passed is how many bytes the kernel has passed on that are not in the session's books yet. Everybody may ask.
func (d *crossing) passed() (up, down uint64) {
	return atomic.LoadUint64(&d.slot.upBytes) - d.upBytes.Load(), atomic.LoadUint64(&d.slot.downBytes) - d.downBytes.Load()
}
