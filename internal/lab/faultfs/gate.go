package faultfs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Kind is what is wrong with a disk.
type Kind string

// The kinds of fault. Reading is never refused or held up: the pages that a server reads often are in memory, as they
// are above any disk.
const (
	Healthy Kind = ""      // nothing
	Full    Kind = "full"  // a write that needs another block fails with ENOSPC; existing blocks can be overwritten, and removing makes no room
	Slow    Kind = "slow"  // every change and every sync takes Delay longer
	Stalled Kind = "stall" // every change and every sync waits in the kernel until the disk is healed; not even SIGKILL ends the wait
	Failing Kind = "fail"  // every sync ends in EIO; writes still succeed
)

// MaxDelay is the longest Fault.Delay: longer is a stall.
const MaxDelay = time.Minute

// Fault is what is wrong with a disk, and how much.
type Fault struct {
	Kind  Kind          `json:"kind"`
	Delay time.Duration `json:"delay_ns,omitempty"` // of Slow
}

func (f Fault) String() string {
	switch f.Kind {
	case Healthy:
		return "healthy"
	case Slow:
		return "slow by " + f.Delay.String()
	default:
		return string(f.Kind)
	}
}

// Check returns what is wrong with the fault.
func (f Fault) Check() error {
	switch {
	case f.Kind != Healthy && f.Kind != Full && f.Kind != Slow && f.Kind != Stalled && f.Kind != Failing:
		return fmt.Errorf("unknown fault %q", f.Kind)
	case f.Kind == Slow && (f.Delay <= 0 || f.Delay > MaxDelay):
		return fmt.Errorf("a delay of %v: choose one above 0 and up to %v", f.Delay, MaxDelay)
	case f.Kind != Slow && f.Delay != 0:
		return fmt.Errorf("a disk that is %s has no delay", f)
	}
	return nil
}

// State is a disk as it is now.
type State struct {
	Fault
	Waiting int64 `json:"waiting"` // requests held now, by a stall or a delay
	Delayed int64 `json:"delayed"` // held so far
	Refused int64 `json:"refused"` // ended in ENOSPC or EIO so far
	PID     int   `json:"pid"`     // of the process that serves the disk
}

// gate is what every change of the disk passes. Its methods may be called from any goroutine.
type gate struct {
	fault   atomic.Pointer[Fault]
	waiting atomic.Int64
	delayed atomic.Int64
	refused atomic.Int64

	mu     sync.Mutex
	change chan struct{} // closed when the fault is another one; guarded by mu
}

func newGate() *gate {
	g := &gate{change: make(chan struct{})}
	g.fault.Store(&Fault{})
	return g
}

// set puts another fault in force; operations that wait because of the last one check again.
func (g *gate) set(f Fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault.Store(&f)
	close(g.change)
	g.change = make(chan struct{})
}

// now gives the fault in force and what ends with it.
func (g *gate) now() (Fault, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.fault.Load(), g.change
}

// pass holds up one change or sync for as long as the fault in force demands. It is not interruptible, as a disk is
// not.
func (g *gate) pass() {
	if k := g.fault.Load().Kind; k != Slow && k != Stalled {
		return
	}
	g.delayed.Add(1)
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	for {
		f, change := g.now()
		switch f.Kind {
		case Stalled:
			<-change
		case Slow:
			select {
			case <-change:
				continue
			case <-time.After(f.Delay):
			}
			return
		default:
			return
		}
	}
}

// room is ENOSPC where the disk is full.
func (g *gate) room() syscall.Errno {
	if g.fault.Load().Kind != Full {
		return 0
	}
	g.refused.Add(1)
	return syscall.ENOSPC
}

// sync is EIO where syncing fails.
func (g *gate) sync() syscall.Errno {
	if g.fault.Load().Kind != Failing {
		return 0
	}
	g.refused.Add(1)
	return syscall.EIO
}

func (g *gate) state(pid int) State {
	return State{Fault: *g.fault.Load(), Waiting: g.waiting.Load(), Delayed: g.delayed.Load(), Refused: g.refused.Load(), PID: pid}
}
