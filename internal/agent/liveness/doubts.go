package liveness

import (
	"context"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/silence"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

const (
	// beatsMissed is how many beats must be missing before the voter looks at each.
	beatsMissed = 3
	// punctual is how late a look may be without being counted: timers of this process are no better.
	punctual = 20 * time.Millisecond
	// unwatched is how long the voter waits for a leader to appear.
	unwatched = time.Second
)

// Watched is the leader whose silence a voter judges, as the agent knows it now.
type Watched struct {
	Leader   ag.ReplicaID  // "": there is none, or it is this node
	Judge    bool          // an unusual silence is evidence; otherwise it is only shown
	Beat     time.Duration // how often it sends heartbeats
	Limits   silence.Limits
	WAL      time.Duration // boottime of the last WAL or keepalive of it; 0: none
	Renewed  time.Duration // boottime at which a renewal of it was last seen
	Damped   bool          // Limits.Floor is longer, as a leader that was deposed for its silence lately was alive
	Declared string        // why it may be silent up to Limits.Most; "": it is not expected to be
}

// doubts is what a voter makes of the present leader's silence.
type doubts struct {
	said string // in words
}

// beat records a heartbeat of a member, which ends any evidence of its silence.
func (v *Voter) beat(from ag.ReplicaID, incarnation string, e ag.Epoch) {
	v.mu.Lock()
	h := v.of(from)
	ended := false
	if h.incarnation == incarnation {
		if e > h.epoch { // it did not lead until now, hence sent nothing
			h.epoch, h.rhythm = e, silence.Detector{}
		}
		h.beat = boottime.Now()
		h.rhythm.Beat(h.beat)
		ended = h.heardAgain()
	}
	v.mu.Unlock()
	if ended {
		v.wake()
	}
}

// Beats reports whether a stream of the member's heartbeats is open and one came within that time.
func (v *Voter) Beats(from ag.ReplicaID, within time.Duration) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	h := v.members[from]
	return h != nil && h.open > 0 && h.beat != 0 && boottime.Now()-h.beat < within
}

// heardAgain ends evidence of silence, and reports whether there was any.
func (h *heard) heardAgain() bool {
	if h.evidence.Silent == "" {
		return false
	}
	h.evidence, h.leadRev = ag.Evidence{}, 0
	return true
}

// Watch judges the silence of the leader that watched returns, until ctx is done. It measures its own lateness by its
// own looks: a node that gets no processor time suspects nobody. An unusual silence becomes evidence. Look returns it
// once a record that was read later shows no renewal.
func (v *Voter) Watch(ctx context.Context, watched func() Watched) {
	due := boottime.Now()
	for retry.Sleep(ctx, boottime.Until(due)) == nil {
		now := boottime.Now()
		due = now + v.judge(watched(), now, now-due)
	}
}

// judge judges the leader's silence at the boottime now, which is late by that much. It returns after what time to
// judge next.
func (v *Voter) judge(w Watched, now, late time.Duration) (next time.Duration) {
	v.mu.Lock()
	h := v.members[w.Leader]
	if h == nil || w.Beat <= 0 {
		v.doubts = doubts{}
		v.mu.Unlock()
		return unwatched
	}
	if late > punctual {
		h.rhythm.Late(now, late)
	}
	h.rhythm.Heard(max(w.WAL, w.Renewed))
	h.rhythm.Declare(w.declared(h))
	j := h.rhythm.Judge(now, w.Limits)
	v.doubts = doubts{w.words(j)}
	changed := false
	switch {
	case !j.Suspect:
		changed = h.heardAgain()
	case w.Judge && h.evidence == (ag.Evidence{}) && h.epoch >= v.known:
		h.evidence, h.found, h.leadRev, h.threshold = ag.Evidence{Epoch: h.epoch, Incarnation: h.incarnation, Silent: j.Words()}, now, 0, j.Threshold
		changed = true
	}
	v.mu.Unlock()
	if changed {
		v.log.Info("silence of the primary", "member", w.Leader, "suspect", j.Suspect, "because", j.Words())
		v.wake()
	}
	if j.Silence < beatsMissed*w.Beat {
		return max(w.Beat, j.Threshold/4)
	}
	return max(punctual/4, min(w.Beat, j.Threshold-j.Silence+time.Millisecond))
}

// words returns what was heard, for people.
func (w Watched) words(j silence.Judgement) string {
	if w.Damped {
		return j.Words() + "; longer than usual, for a primary that was deposed for its silence lately was alive"
	}
	return j.Words()
}

// declared returns for how long the leader may be silent by what it has declared, and why.
func (w Watched) declared(h *heard) (time.Duration, string) {
	switch {
	case h.farewell:
		return w.Limits.Most, "it ended its streams in order"
	case w.Declared != "":
		return w.Limits.Most, w.Declared
	}
	return 0, ""
}
