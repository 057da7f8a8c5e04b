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

// SeenMark is the latest record that this node has seen. Both numbers only grow in a store that keeps its promises.
type SeenMark struct {
	Epoch ag.Epoch `json:"epoch"`
	Seq   uint64   `json:"state_sequence"`
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

// judge refuses a record older than one seen before.
func (t *trust) judge(r ag.Record) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := SeenMark{r.Epoch.Epoch, r.State.Seq}
	if now.Epoch < t.seen.Epoch || now.Seq < t.seen.Seq {
		return fmt.Errorf("%w: it holds epoch %d with state %d, and epoch %d with state %d was seen", ErrUntrusted, now.Epoch, now.Seq, t.seen.Epoch, t.seen.Seq)
	}
	if now != t.seen {
		t.seen = now
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
