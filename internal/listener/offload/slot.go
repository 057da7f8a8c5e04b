package offload

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Slot is what the kernel's program and the listener share about one session, in memory that both have mapped. Up is from the client to
// PostgreSQL, down the way back.
type Slot struct {
	Armed      uint32 // 1: the kernel passes pieces on. The listener sets it; both clear it
	Flags      uint32
	inside     uint32 // runs of the program that look at the slot now
	generation uint32 // of the slot's sessions
	// What the program has passed on, in pieces and bytes.
	Ups, Downs, upBytes, DownBytes uint64
	// Bytes that it left to the loop, and how many of them the loop had read when it armed the slot.
	UpLeft, UpTaken, DownLeft, DownTaken uint64
	DownLimit                            uint64 // of downBytes
	Logged                               uint32 // bytes of the last request in log; 0: it was answered, and is not there any more
	Status                               uint32 // of the last ReadyForQuery
	Why                                  uint32 // a session came back
	Single                               uint32 // the last request was a Query
	_                                    [slotLog - 104]byte
	Log                                  [slotSize - slotLog]byte // the last request that was passed on
}

func slotAt(memory []byte, i uint32) *Slot {
	return (*Slot)(unsafe.Pointer(&memory[int(i)*slotSize])) //nolint:gosec // slots follow one another in the mapping
}

// Disarm has the kernel pass nothing on any more, and returns when that is so: a run of the program takes microseconds. It is false if
// the slot was disarmed before. Everybody may call it.
func (s *Slot) Disarm() bool {
	was := atomic.SwapUint32(&s.Armed, 0)
	s.AwaitOutside()
	return was != 0
}

func (s *Slot) AwaitOutside() {
	for i := 0; atomic.LoadUint32(&s.inside) != 0; i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}
		time.Sleep(20 * time.Microsecond) // whoever is inside was preempted
	}
}

// Quiet says that everything that the kernel has passed to PostgreSQL was answered.
func (s *Slot) Quiet() bool {
	downs := atomic.LoadUint64(&s.Downs) // looked at first: it follows
	return atomic.LoadUint64(&s.Ups) == downs
}

// Session is a session whose sockets the kernel's program knows. But for slot it belongs to the loop's goroutine.
type Session struct {
	Slot      *Slot
	Index     uint32
	cookies   []uint64 // by which the program finds the slot
	returnEnd int      // where the program sends what PostgreSQL has said that is the loop's
	Returns   int      // the other end; closed with the session's sockets
	UpRead    uint64   // bytes that the loop has read from the client since the program knows it
	DownRead  uint64   // the same, from PostgreSQL
	Base      uint64   // what the loop has written to the client, but for a constant
	Ups       uint64   // pieces and bytes that are in the session's books
	UpBytes   atomic.Uint64
	DownBytes atomic.Uint64
	Began     uint64 // ups when it was armed
}

// Passed is how many bytes the kernel has passed on that are not in the session's books yet. Everybody may ask.
func (d *Session) Passed() (up, down uint64) {
	return atomic.LoadUint64(&d.Slot.upBytes) - d.UpBytes.Load(), atomic.LoadUint64(&d.Slot.DownBytes) - d.DownBytes.Load()
}
