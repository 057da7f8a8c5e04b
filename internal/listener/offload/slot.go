package offload

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Slot is what the program and the listener share about one session, in memory that both have mapped. Up is from the
// client to PostgreSQL, down is the opposite direction.
type Slot struct {
	Armed      uint32 // 1: the kernel relays. The listener sets it; both clear it
	Flags      uint32
	inside     uint32 // runs of the program that use the slot now
	generation uint32 // counts the slot's sessions
	// Amounts that the program has relayed, in pieces and bytes.
	Ups, Downs, upBytes, DownBytes uint64
	// Bytes that it left to the loop, and how many of them the loop had read when it armed the slot.
	UpLeft, UpTaken, DownLeft, DownTaken uint64
	DownLimit                            uint64 // of downBytes
	Logged                               uint32 // bytes of the last request in Log; 0: it was answered
	Status                               uint32 // of the last ReadyForQuery
	Why                                  uint32 // why the session came back
	Single                               uint32 // the last request was a Query
	Parsed                               uint32 // the unnamed statement was parsed, and not bound since
	_                                    [slotLog - 108]byte
	Log                                  [slotSize - slotLog]byte // the last request that was relayed
}

// slotAt returns the slot of that index.
func slotAt(memory []byte, i uint32) *Slot {
	return (*Slot)(unsafe.Pointer(&memory[int(i)*slotSize])) //nolint:gosec // slots follow one another in the mapping
}

// Disarm stops the kernel from relaying, and returns when no run of the program uses the slot; a run takes
// microseconds. It reports false if the slot was not armed. Any goroutine may call it.
func (s *Slot) Disarm() bool {
	was := atomic.SwapUint32(&s.Armed, 0)
	s.AwaitOutside()
	return was != 0
}

// reset makes the slot as new. A run of the program may still enter for an older session and leave again, so inside is
// the program's own.
func (s *Slot) reset() {
	s.Armed, s.Flags = 0, 0
	s.Ups, s.Downs, s.upBytes, s.DownBytes = 0, 0, 0, 0
	s.UpLeft, s.UpTaken, s.DownLeft, s.DownTaken, s.DownLimit = 0, 0, 0, 0, 0
	s.Logged, s.Status, s.Why, s.Single, s.Parsed = 0, 0, 0, 0, 0
	clear(s.Log[:])
}

// AwaitOutside returns when no run of the program uses the slot.
func (s *Slot) AwaitOutside() {
	for i := 0; atomic.LoadUint32(&s.inside) != 0; i++ {
		if i < 100 {
			runtime.Gosched()
			continue
		}
		time.Sleep(20 * time.Microsecond) // the run was preempted
	}
}

// Quiet reports whether everything that the kernel has passed to PostgreSQL was answered.
func (s *Slot) Quiet() bool {
	downs := atomic.LoadUint64(&s.Downs) // read first: it follows Ups
	return atomic.LoadUint64(&s.Ups) == downs
}

// Session is a session whose sockets the program knows. Everything but Slot belongs to the loop's goroutine.
type Session struct {
	Slot      *Slot
	Index     uint32
	cookies   []uint64 // under which the program finds the slot
	returnEnd int      // where the program sends answers that the loop has to read
	Returns   int      // the other end; its owner closes it with the session's sockets
	UpRead    uint64   // bytes that the loop has read from the client since Add
	DownRead  uint64   // the same, from PostgreSQL
	Base      uint64   // bytes that the loop has written to the client, up to a constant
	Ups       uint64   // relayed pieces and bytes that the session has counted
	UpBytes   atomic.Uint64
	DownBytes atomic.Uint64
	Began     uint64 // Ups when it was armed
}

// Passed returns how many relayed bytes the session has not counted yet. Any goroutine may call it.
func (d *Session) Passed() (up, down uint64) {
	return atomic.LoadUint64(&d.Slot.upBytes) - d.UpBytes.Load(), atomic.LoadUint64(&d.Slot.DownBytes) - d.DownBytes.Load()
}

// Relayed reports whether the kernel has relayed a request since it took the session over. The caller keeps others from
// arming the slot meanwhile, and the session from coming back.
func (d *Session) Relayed() bool { return atomic.LoadUint64(&d.Slot.Ups) != d.Began }
