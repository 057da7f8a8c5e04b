package lease

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// unlimited is the end of an answer lease that limits nothing.
const unlimited = time.Duration(math.MaxInt64)

// Answers is the answer lease of a primary: until when the answers of its server may reach clients. Voters extend it by
// acknowledging heartbeats. It obeys every declaration that /lead may hold: a declaration counts from BEFORE it is
// written until another one of the epoch is known to be written (docs/internals/safety.md, "Fast takeover"). Its
// methods may be called from any goroutine.
type Answers struct {
	self ag.ReplicaID

	mu       sync.Mutex // guards the fields below
	epoch    ag.Epoch
	declared []ag.Answer
	acked    map[ag.ReplicaID]time.Duration // boottime before the newest acknowledged heartbeat was sent
	first    map[ag.ReplicaID]time.Duration // boottime after the first acknowledgement of the epoch came

	end   atomic.Int64 // boottime nanoseconds
	moved func()
}

// NewAnswers returns the answer lease of a node. moved is called whenever its end comes nearer; nil: it is not.
func NewAnswers(self ag.ReplicaID, moved func()) *Answers { return &Answers{self: self, moved: moved} }

func (a *Answers) until() time.Duration { return time.Duration(a.end.Load()) }

// Declaring must be called BEFORE a renewal of the epoch that declares d is sent.
func (a *Answers) Declaring(e ag.Epoch, d ag.Answer) {
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

// Declared is called AFTER a renewal of the epoch that declares d was written, when no older one can be written any
// more.
func (a *Answers) Declared(e ag.Epoch, d ag.Answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e != a.epoch {
		return
	}
	a.declared = append(a.declared[:0], d)
	a.settle()
}

// Acknowledged is called when a voter has acknowledged a heartbeat of the epoch. sent is a boottime before that
// heartbeat was sent.
func (a *Answers) Acknowledged(e ag.Epoch, by ag.ReplicaID, sent time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enter(e)
	if _, known := a.first[by]; e == a.epoch && !known {
		a.first[by] = boottime.Now()
	}
	if e == a.epoch && sent > a.acked[by] {
		a.acked[by] = sent
		a.settle()
	}
}

// Superseded returns how long ago a majority of the voters of an outgoing leader, the leader itself left out, had
// acknowledged a heartbeat of the epoch. 0: it has not. A voter that acknowledges an epoch acknowledges no earlier one.
func (a *Answers) Superseded(e ag.Epoch, o ag.Outgoing) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e != a.epoch || len(o.Answer.Voters) == 0 {
		return 0
	}
	var at []time.Duration
	need := o.Answer.Majority()
	for _, id := range o.Answer.Voters {
		if id == a.self && id != o.Leader {
			need-- // this node leads the epoch
		} else if t, ok := a.first[id]; ok && id != o.Leader {
			at = append(at, t)
		}
	}
	if need <= 0 || len(at) < need {
		return 0
	}
	slices.Sort(at)
	return boottime.Now() - at[need-1]
}

// enter forgets what belongs to an earlier epoch.
func (a *Answers) enter(e ag.Epoch) {
	if e > a.epoch {
		a.epoch, a.declared, a.acked = e, nil, map[ag.ReplicaID]time.Duration{}
		a.first = map[ag.ReplicaID]time.Duration{}
		a.moveTo(0)
	}
}

func (a *Answers) moveTo(end time.Duration) {
	if old := a.end.Swap(int64(end)); a.moved != nil && int64(end) < old {
		a.moved()
	}
}

// settle sets the end to the earliest that any declaration in force allows.
func (a *Answers) settle() {
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
