package liveness

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/silence"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

const (
	// dialGap separates the two dials that make evidence.
	dialGap = 50 * time.Millisecond
	// dialLimit bounds one dial; a refusal takes no time.
	dialLimit = time.Second
	// dialAgain separates two attempts to find evidence against a member whose streams ended.
	dialAgain = 250 * time.Millisecond
	// heartStreams bounds the streams of heartbeats that one member may have open here.
	heartStreams = 4
)

// Voter is this node as a member that acknowledges a primary's heartbeats, and that may vote for the primary's
// replacement. Make it with NewVoter. Its methods may be called from any goroutine.
//
// A vote promises that this node acknowledges no heartbeat of the epoch. So the agent MUST call Withhold BEFORE it
// writes a vote, and MUST call Resume only AFTER the vote was removed from the record.
type Voter struct {
	dial func(context.Context, ag.Replica) error
	wake func()
	log  *slog.Logger

	mu       sync.Mutex // guards the fields below
	fresh    bool       // an earlier process may have voted, and its vote is not removed yet: nothing is acknowledged
	withheld ag.Epoch
	known    ag.Epoch      // heartbeats of older epochs are not acknowledged
	last     time.Duration // boottime of the last acknowledgement, or of the beginning
	members  map[ag.ReplicaID]*heard
	doubts   doubts
}

// heard is what the heartbeats of one member say about it.
type heard struct {
	open        int           // streams
	beat        time.Duration // boottime of its newest heartbeat; 0: none
	epoch       ag.Epoch
	incarnation string
	generation  uint64      // number of streams that began; a new stream ends the evidence
	evidence    ag.Evidence // the zero value: none
	found       time.Duration
	leadRev     int64 // revision of /lead that the evidence rests on; 0: that of the first read that begins after it was found
	probing     bool

	rhythm    silence.Detector // in which this node hears of it
	farewell  bool             // its last stream ended in order: its silence is expected
	threshold time.Duration    // that its silence exceeded when it became evidence
}

// NewVoter returns a voter that acknowledges nothing yet. dial makes a connection to a member's endpoint and drops it;
// its error wraps ErrRefused where nothing listens. wake is called when evidence was found.
func NewVoter(dial func(context.Context, ag.Replica) error, wake func(), log *slog.Logger) *Voter {
	return &Voter{dial: dial, wake: wake, log: log, fresh: true, last: boottime.Now(), members: map[ag.ReplicaID]*heard{}}
}

func (v *Voter) of(id ag.ReplicaID) *heard {
	h := v.members[id]
	if h == nil {
		h = &heard{}
		v.members[id] = h
	}
	return h
}

// acknowledge reports whether a heartbeat of that epoch may be acknowledged, and records that it is. It does so BEFORE
// the acknowledgement is sent: the answer lease may count from then on.
func (v *Voter) acknowledge(e ag.Epoch) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fresh || e == v.withheld || e < v.known {
		return false
	}
	v.known = max(v.known, e) // no earlier epoch is acknowledged from now on
	v.last = boottime.Now()
	return true
}

// Withhold acknowledges no heartbeat of the epoch any more.
func (v *Voter) Withhold(e ag.Epoch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.withheld = e
}

// Resume acknowledges again. The caller has seen this node's vote removed.
func (v *Voter) Resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fresh, v.withheld = false, 0
}

// Serve answers the heartbeats of one stream until it ends. died reports whether the end may be a death: it was the
// last stream of an agent that held an epoch, and came without a farewell.
func (v *Voter) Serve(from ag.ReplicaID, s HeartbeatStream) (died bool) {
	first, err := s.Receive()
	if err != nil || first.Incarnation == "" {
		return false
	}
	if !v.began(from, first.Incarnation) {
		return false
	}
	farewell := false
	for {
		b, err := s.Receive()
		if err != nil {
			return v.over(from, first.Incarnation, farewell)
		}
		if farewell = farewell || b.Farewell; farewell {
			continue
		}
		v.beat(from, first.Incarnation, b.Epoch)
		if v.acknowledge(b.Epoch) {
			if err := s.Send(Heartbeat{Epoch: b.Epoch, Sent: b.Sent}); err != nil {
				return v.over(from, first.Incarnation, farewell)
			}
		}
	}
}

// began records an accepted stream: an agent that opens one is alive. It returns false if the member has too many.
func (v *Voter) began(from ag.ReplicaID, incarnation string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.of(from)
	if h.open >= heartStreams {
		return false
	}
	if h.incarnation != incarnation {
		h.incarnation, h.epoch, h.rhythm = incarnation, 0, silence.Detector{}
	}
	h.farewell = false
	h.open++
	h.generation++
	h.evidence, h.leadRev = ag.Evidence{}, 0
	return true
}

// over records the end of a stream. It returns true if it was the last one of the agent and ended without a farewell.
func (v *Voter) over(from ag.ReplicaID, incarnation string, farewell bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.of(from)
	h.open--
	h.farewell = farewell && h.incarnation == incarnation
	return h.open == 0 && !farewell && h.incarnation == incarnation && h.epoch != 0
}

// Probe looks for evidence against a member whose streams ended: two refused connections in a row. It continues until
// the member is heard from again, a later epoch is known, or ctx is done. At most one probe of a member runs at a time.
func (v *Voter) Probe(ctx context.Context, to ag.Replica) {
	v.mu.Lock()
	h := v.of(to.ID)
	if h.probing || h.open > 0 || h.evidence != (ag.Evidence{}) && h.evidence.Silent == "" {
		v.mu.Unlock()
		return
	}
	h.probing = true
	generation, found := h.generation, ag.Evidence{Epoch: h.epoch, Incarnation: h.incarnation}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		h.probing = false
		v.mu.Unlock()
	}()
	for ctx.Err() == nil {
		refused := v.refused(ctx, to)
		if refused {
			_ = retry.Sleep(ctx, dialGap)
			refused = v.refused(ctx, to)
		}
		v.mu.Lock()
		stale := h.generation != generation || h.open > 0 || found.Epoch < v.known
		if refused && !stale && ctx.Err() == nil {
			h.evidence, h.found, h.leadRev = found, boottime.Now(), 0
		}
		v.mu.Unlock()
		if stale {
			return
		}
		if refused {
			v.log.Warn("a primary is seen to be dead: its streams ended and its endpoint refuses connections", "member", to.ID, "epoch", found.Epoch)
			v.wake()
			return
		}
		_ = retry.Sleep(ctx, dialAgain)
	}
}

func (v *Voter) refused(ctx context.Context, to ag.Replica) bool {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	return errors.Is(v.dial(ctx, to), ErrRefused)
}

// Look returns this node's part in fast takeover, as of a record that was requested at the boottime asked. unrenewed is
// for how long this node has seen no renewal of /lead, that read included. again names a member to be probed again: its
// evidence ended because it renewed, perhaps before it died.
func (v *Voter) Look(r ag.Record, asked, unrenewed time.Duration) (now ag.Voting, again ag.ReplicaID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = max(v.known, r.Epoch.Epoch)
	now = ag.Voting{Withheld: v.withheld, Fresh: v.fresh, Quiet: boottime.Now() - v.last, Heard: v.doubts.said}
	h := v.members[r.Epoch.Leader]
	if h == nil || h.evidence == (ag.Evidence{}) {
		return now, ""
	}
	switch silent := h.evidence.Silent != ""; {
	case silent && unrenewed <= h.threshold, silent && h.leadRev != 0 && h.leadRev != r.Revs.Lead:
		h.evidence, h.leadRev = ag.Evidence{}, 0 // it lives: it has renewed
		return now, ""
	case h.leadRev == 0 && asked < h.found:
		return now, ""
	case h.leadRev == 0:
		h.leadRev = r.Revs.Lead
	case h.leadRev != r.Revs.Lead:
		h.evidence, h.leadRev = ag.Evidence{}, 0
		return now, r.Epoch.Leader
	}
	now.Evidence = h.evidence
	return now, ""
}
