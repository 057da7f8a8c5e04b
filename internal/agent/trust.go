package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// ErrUntrusted says that the quorum's store has gone back in time: it was restored from a backup, made anew, or recovered by force. What
// it says of who holds which commits is not true any more, and nobody is promoted upon it (safety specification 1.5).
var ErrUntrusted = errors.New("the quorum's store is older than what this node has seen")

// SeenMark is the latest record that this node has seen, and the store it was in. The numbers only grow in a store that keeps its
// promises, and it stays the same store. On disk the revision is that of the last time anything else moved.
type SeenMark struct {
	Epoch ag.Epoch `json:"epoch"`
	Seq   uint64   `json:"state_sequence"`
	Store uint64   `json:"store,omitempty"`
	Rev   int64    `json:"store_revision,omitempty"`
}

// Seen returns the latest record seen; the zero value when there was none.
func (m *Marks) Seen() (SeenMark, error) { return readMark[SeenMark](m, "seen.json") }

// SetSeen stores it.
func (m *Marks) SetSeen(s SeenMark) error { return m.write("seen.json", s) }

// olderThan reports whether a store whose record is s cannot have held that of o before.
func (s SeenMark) olderThan(o SeenMark) bool { return s.Epoch < o.Epoch || s.Seq < o.Seq }

// trust remembers the latest record seen, in memory at once and on disk within a moment: a failover does not wait for the disk, and
// what a crash in between forgets is one step of many that every other member has seen as well.
type trust struct {
	mu   sync.Mutex // guards the fields below
	seen SeenMark
	kick chan struct{}

	heard [2]hearsay // the latest that other members say they have seen, and before that
}

// hearsay is what others have seen of the record, by a boottime.
type hearsay struct {
	mark SeenMark // its epoch and sequence
	at   time.Duration
}

// hear takes note of what another member has seen. A member that was away cannot know by itself that the store has gone back to what it
// remembers; those who were not away tell it.
func (t *trust) hear(s SeenMark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.heard[0].mark; h.olderThan(s) {
		t.heard[0], t.heard[1] = hearsay{SeenMark{Epoch: max(h.Epoch, s.Epoch), Seq: max(h.Seq, s.Seq)}, boottime.Now()}, t.heard[0]
	}
}

// judge refuses a record older than one seen before, by this node or, at the boottime when it was asked for, by another: what somebody has
// read is in a store that keeps its promises. It refuses one of another store, too. One caller at a time reads and has it judged: of two
// reads under way at once, the later might end first.
func (t *trust) judge(s Snapshot, asked time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, now := t.seen, SeenMark{s.Record.Epoch.Epoch, s.Record.State.Seq, s.StoreID, s.StoreRev}
	switch {
	case now.olderThan(was):
		return fmt.Errorf("%w: it holds epoch %d with state %d, and epoch %d with state %d was seen", ErrUntrusted, now.Epoch, now.Seq, was.Epoch, was.Seq)
	case was.Store != 0 && now.Store != was.Store:
		return fmt.Errorf("%w: it is store %x, and the record was in store %x", ErrUntrusted, now.Store, was.Store)
	case now.Rev < was.Rev:
		return fmt.Errorf("%w: it is at revision %d, and revision %d was seen", ErrUntrusted, now.Rev, was.Rev)
	}
	for _, h := range t.heard {
		if now.olderThan(h.mark) && asked > h.at {
			return fmt.Errorf("%w: it holds epoch %d with state %d, and others have seen epoch %d with state %d", ErrUntrusted, now.Epoch, now.Seq, h.mark.Epoch, h.mark.Seq)
		}
	}
	t.seen = now
	was.Rev = now.Rev // which moves all the time
	if now != was {
		select {
		case t.kick <- struct{}{}:
		default:
		}
	}
	return nil
}

// remember is called with what was on disk when the agent starts.
func (t *trust) remember(s SeenMark) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen = s
}

func (t *trust) latest() SeenMark {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// rememberSeen writes the mark whenever it moves, until ctx is done, and then once more.
func (a *Agent) rememberSeen(ctx context.Context) {
	saved := a.believed.latest()
	for {
		ended := false
		select {
		case <-a.believed.kick:
		case <-ctx.Done():
			ended = true
		}
		if now := a.believed.latest(); now != saved {
			if err := a.cfg.Marks.SetSeen(now); err != nil {
				a.log.Warn("the record seen was not remembered", "err", err)
			} else {
				saved = now
			}
		}
		if ended {
			return
		}
	}
}
