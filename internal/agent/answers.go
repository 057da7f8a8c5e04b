package agent

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// unlimited is the end of an answer lease that does not limit anything.
const unlimited = time.Duration(math.MaxInt64)

// answers is the answer lease of a primary: until when what its server says may reach clients. It is moved by voters
// that acknowledge heartbeats, and keeps to everything that /lead may say about it: a declaration counts from before it
// is written until another one of the epoch is known to be written (docs/internals/safety.md, "Fast takeover").
type answers struct {
	self ag.ReplicaID

	mu       sync.Mutex // guards the fields below
	epoch    ag.Epoch
	declared []ag.Answer
	acked    map[ag.ReplicaID]time.Duration // boottime before the newest acknowledged heartbeat was sent

	end   atomic.Int64 // boottime nanoseconds
	moved func()       // called when it is nearer than before; nil: nobody wants to know
}

func (a *answers) until() time.Duration { return time.Duration(a.end.Load()) }

// declaring is called before a renewal of the epoch that says d is sent.
func (a *answers) declaring(e ag.Epoch, d ag.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enter(e)
	for _, old := range a.declared {
		if old.Same(d) {
			return
		}
	}
	a.declared = append(a.declared, d)
	a.settle()
}

// declares is called when a renewal of the epoch that says d was written, and no older one can be any more.
func (a *answers) declares(e ag.Epoch, d ag.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e != a.epoch {
		return
	}
	a.declared = append(a.declared[:0], d)
	a.settle()
}

// acknowledged is called when a voter has acknowledged the heartbeat of the epoch that was sent after sent.
func (a *answers) acknowledged(e ag.Epoch, by ag.ReplicaID, sent time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enter(e)
	if e == a.epoch && sent > a.acked[by] {
		a.acked[by] = sent
		a.settle()
	}
}

// enter forgets what belongs to an earlier epoch.
func (a *answers) enter(e ag.Epoch) {
	if e > a.epoch {
		a.epoch, a.declared, a.acked = e, nil, map[ag.ReplicaID]time.Duration{}
		a.moveTo(0)
	}
}

func (a *answers) moveTo(end time.Duration) {
	if old := a.end.Swap(int64(end)); a.moved != nil && int64(end) < old {
		a.moved()
	}
}

func (a *answers) settle() {
	end := unlimited
	for _, d := range a.declared {
		switch until, limited, ok := d.Until(a.self, a.acked); {
		case !ok:
			end = 0
		case limited:
			end = min(end, until)
		}
	}
	if len(a.declared) == 0 {
		end = 0
	}
	a.moveTo(end)
}
