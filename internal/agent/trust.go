package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/coteriedb/coterie/internal/ag"
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

// trust remembers the latest record seen, in memory at once and on disk within a moment: a failover does not wait for the disk, and
// what a crash in between forgets is one step of many that every other member has seen as well.
type trust struct {
	mu   sync.Mutex // guards seen
	seen SeenMark
	kick chan struct{}
}

// judge refuses a record older than one seen before, or of another store. One caller at a time reads and has it judged: of two reads
// under way at once, the later might end first.
func (t *trust) judge(s Snapshot) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, now := t.seen, SeenMark{s.Record.Epoch.Epoch, s.Record.State.Seq, s.StoreID, s.StoreRev}
	switch {
	case now.Epoch < was.Epoch || now.Seq < was.Seq:
		return fmt.Errorf("%w: it holds epoch %d with state %d, and epoch %d with state %d was seen", ErrUntrusted, now.Epoch, now.Seq, was.Epoch, was.Seq)
	case was.Store != 0 && now.Store != was.Store:
		return fmt.Errorf("%w: it is store %x, and the record was in store %x", ErrUntrusted, now.Store, was.Store)
	case now.Rev < was.Rev:
		return fmt.Errorf("%w: it is at revision %d, and revision %d was seen", ErrUntrusted, now.Rev, was.Rev)
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
