package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	// dialGap separates the two dials that make evidence.
	dialGap = 50 * time.Millisecond
	// dialLimit bounds one of them; a refusal takes no time.
	dialLimit = time.Second
	// dialAgain separates two looks at a member whose streams ended, until it is there again.
	dialAgain = 250 * time.Millisecond
	// heartStreams bounds the streams of heartbeats that one member may have open here.
	heartStreams = 4
)

// voter is this node as one of those who acknowledge a primary's heartbeats, and who may vote for its replacement.
type voter struct {
	self  ag.ReplicaID
	peers Peers
	wake  func()
	log   *slog.Logger

	mu       sync.Mutex // guards the fields below
	fresh    bool       // nothing is acknowledged before what an earlier process voted is undone
	withheld ag.Epoch
	known    ag.Epoch      // heartbeats of older epochs are not acknowledged
	last     time.Duration // boottime of the last acknowledgement, at first of the beginning
	peersNow map[ag.ReplicaID]*heard
}

// heard is what the heartbeats of one member say of it.
type heard struct {
	open        int // streams
	epoch       ag.Epoch
	incarnation string
	ended       uint64      // how often the last stream ended without a farewell; a stream that begins ends the evidence
	evidence    ag.Evidence // the zero value: none
	found       time.Duration
	leadRev     int64 // revision of /lead that the evidence stands on; 0: that of the first read that began after it was found
	probing     bool
}

func newVoter(self ag.ReplicaID, p Peers, wake func(), log *slog.Logger) *voter {
	return &voter{self: self, peers: p, wake: wake, log: log, fresh: true, last: boottime.Now(), peersNow: map[ag.ReplicaID]*heard{}}
}

func (v *voter) of(id ag.ReplicaID) *heard {
	h := v.peersNow[id]
	if h == nil {
		h = &heard{}
		v.peersNow[id] = h
	}
	return h
}

// acknowledge reports whether a heartbeat of that epoch may be acknowledged, and notes that it is: by then the answer lease may
// count from a moment that is past.
func (v *voter) acknowledge(e ag.Epoch) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fresh || e == v.withheld || e < v.known {
		return false
	}
	v.last = boottime.Now()
	return true
}

func (v *voter) withhold(e ag.Epoch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.withheld = e
}

// resume acknowledges again; its caller has seen the vote removed.
func (v *voter) resume() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fresh, v.withheld = false, 0
}

// serve answers the heartbeats of one stream until it ends, and returns whether it ended as by a death.
func (v *voter) serve(from ag.ReplicaID, s Heart) (died bool) {
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
		v.mu.Lock()
		if h := v.of(from); h.incarnation == first.Incarnation {
			h.epoch = max(h.epoch, b.Epoch)
		}
		v.mu.Unlock()
		if v.acknowledge(b.Epoch) {
			if err := s.Send(Beat{Epoch: b.Epoch, Sent: b.Sent}); err != nil {
				return v.over(from, first.Incarnation, farewell)
			}
		}
	}
}

// began notes an accepted stream: whoever opens one lives.
func (v *voter) began(from ag.ReplicaID, incarnation string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.of(from)
	if h.open >= heartStreams {
		return false
	}
	if h.incarnation != incarnation {
		h.incarnation, h.epoch = incarnation, 0
	}
	h.open++
	h.ended++
	h.evidence, h.leadRev = ag.Evidence{}, 0
	return true
}

// over notes the end of a stream. It returns true when that was the last one of the agent and it did not say farewell.
func (v *voter) over(from ag.ReplicaID, incarnation string, farewell bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.of(from)
	h.open--
	return h.open == 0 && !farewell && h.incarnation == incarnation && h.epoch != 0
}

// probe looks for evidence against a member whose streams ended: two refused connections in a row. It goes on until the member is heard of
// again, a later epoch is known, or ctx is done; at most one probe per member is under way.
func (v *voter) probe(ctx context.Context, to ag.Replica) {
	v.mu.Lock()
	h := v.of(to.ID)
	if h.probing || h.open > 0 || h.evidence != (ag.Evidence{}) {
		v.mu.Unlock()
		return
	}
	h.probing = true
	ended, found := h.ended, ag.Evidence{Epoch: h.epoch, Incarnation: h.incarnation}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		h.probing = false
		v.mu.Unlock()
	}()
	for ctx.Err() == nil {
		refused := v.refused(ctx, to)
		if refused {
			pause(ctx, dialGap)
			refused = v.refused(ctx, to)
		}
		v.mu.Lock()
		stale := h.ended != ended || h.open > 0 || found.Epoch < v.known
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
		pause(ctx, dialAgain)
	}
}

func (v *voter) refused(ctx context.Context, to ag.Replica) bool {
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	return errors.Is(v.peers.Probe(ctx, to), ErrRefused)
}

// look returns this node's part in fast takeover as of a record that was asked for at that boottime. again is a member to be probed anew: its
// evidence ended because it renewed, perhaps before it died.
func (v *voter) look(r ag.Record, asked time.Duration) (now ag.Voting, again ag.ReplicaID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = max(v.known, r.Epoch.Epoch)
	now = ag.Voting{Withheld: v.withheld, Fresh: v.fresh, Quiet: boottime.Now() - v.last}
	h := v.peersNow[r.Epoch.Leader]
	if h == nil || h.evidence == (ag.Evidence{}) {
		return now, ""
	}
	switch {
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
