package faultfs

import (
	"fmt"
	"path"
	"slices"
	"strings"
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
	Broken  Kind = "break" // every write and every sync ends in EIO
)

// MaxDelay is the longest Fault.Delay: longer is a stall.
const MaxDelay = time.Minute

// Fault is what is wrong with a disk, and how much.
type Fault struct {
	Kind  Kind          `json:"kind"`
	Delay time.Duration `json:"delay_ns,omitempty"` // of Slow
	// Files limits Failing and Broken to the files that match: a pattern of path.Match for the path on the disk, or for
	// the last element of it if the pattern has no slash. Empty: all.
	Files string `json:"files,omitempty"`
}

// hits reports whether the fault is of a kind, and of this file.
func (f Fault) hits(name func() string, kinds ...Kind) bool {
	if !slices.Contains(kinds, f.Kind) {
		return false
	}
	if f.Files == "" {
		return true
	}
	file := name()
	if !strings.Contains(f.Files, "/") {
		file = path.Base(file)
	}
	is, _ := path.Match(f.Files, file) // Check has seen the pattern
	return is
}

// String returns the fault in words.
func (f Fault) String() string {
	switch f.Kind {
	case Healthy:
		return "healthy"
	case Slow:
		return "slow by " + f.Delay.String()
	case Failing, Broken:
		if f.Files != "" {
			return string(f.Kind) + " for " + f.Files
		}
		return string(f.Kind)
	default:
		return string(f.Kind)
	}
}

// Check returns what is wrong with the fault.
func (f Fault) Check() error {
	switch {
	case !slices.Contains([]Kind{Healthy, Full, Slow, Stalled, Failing, Broken}, f.Kind):
		return fmt.Errorf("unknown fault %q", f.Kind)
	case f.Kind == Slow && (f.Delay <= 0 || f.Delay > MaxDelay):
		return fmt.Errorf("a delay of %v: choose one above 0 and up to %v", f.Delay, MaxDelay)
	case f.Kind != Slow && f.Delay != 0:
		return fmt.Errorf("a disk that is %s has no delay", f)
	case f.Files != "" && f.Kind != Failing && f.Kind != Broken:
		return fmt.Errorf("a disk that is %s is so for all files", f)
	}
	if _, err := path.Match(f.Files, ""); err != nil {
		return fmt.Errorf("files %q: %w", f.Files, err)
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

// sync is EIO where syncing a file fails.
func (g *gate) sync(name func() string) syscall.Errno { return g.eio(name, Failing, Broken) }

// write is EIO where writing a file fails.
func (g *gate) write(name func() string) syscall.Errno { return g.eio(name, Broken) }

func (g *gate) eio(name func() string, kinds ...Kind) syscall.Errno {
	if !g.fault.Load().hits(name, kinds...) {
		return 0
	}
	g.refused.Add(1)
	return syscall.EIO
}

func (g *gate) state(pid int) State {
	return State{Fault: *g.fault.Load(), Waiting: g.waiting.Load(), Delayed: g.delayed.Load(), Refused: g.refused.Load(), PID: pid}
}
