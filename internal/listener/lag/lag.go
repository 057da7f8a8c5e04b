package lag

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/sharedquery"
)

// How far a copy is behind is bounded without comparing clocks. Each position that the primary has flushed is stored
// with the moment before the question, on this node's clock. A copy that has replayed up to a sample holds everything
// that was flushed at its moment. So it is behind by no more than the time since then.

// Progress is a position in the history of an epoch. It is the flushed position of a primary, or the replayed position
// of a secondary with an open stream from the epoch's primary.
type Progress struct {
	Epoch ag.Epoch `json:"epoch"`
	LSN   ag.LSN   `json:"lsn"`
}

const (
	// maxSamples is how many samples are kept. When the list is full, every other sample of its older half is
	// dropped: the distant past is known more coarsely.
	maxSamples = 128
	// sampleFor is how long a sample is used before the primary is asked again.
	sampleFor = 20 * time.Millisecond
	// CatchUp is how long a login waits at most for a copy to reach the last sample.
	CatchUp = time.Second
	// QueryTimeout bounds one question.
	QueryTimeout = 2 * time.Second
)

// positions is the list of the primary's positions in an epoch, oldest first.
type positions struct {
	mu    sync.Mutex
	epoch ag.Epoch // guarded by mu
	list  []sample // guarded by mu
}

// sample is a position of the primary.
type sample struct {
	at  time.Duration // CLOCK_BOOTTIME
	lsn ag.LSN
}

func (m *positions) add(epoch ag.Epoch, x sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch != m.epoch {
		m.epoch, m.list = epoch, nil
	}
	if len(m.list) == maxSamples {
		i := 0
		m.list = slices.DeleteFunc(m.list, func(sample) bool { i++; return i < maxSamples/2 && i%2 == 0 })
	}
	m.list = append(m.list, x)
}

// fresh reports whether the last sample is recent.
func (m *positions) fresh(epoch ag.Epoch) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return epoch == m.epoch && len(m.list) > 0 && boottime.Now()-m.list[len(m.list)-1].at < sampleFor
}

// currentEpoch returns the epoch of the samples.
func (m *positions) currentEpoch() ag.Epoch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// behind returns by how much a copy at that position may be behind. It reports false if no sample tells.
func (m *positions) behind(x Progress) (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x.Epoch != m.epoch {
		return 0, false
	}
	for _, k := range slices.Backward(m.list) {
		if k.lsn <= x.LSN {
			return boottime.Now() - k.at, true
		}
	}
	return 0, false
}

// Config is what a Judge asks.
type Config struct {
	Routes   func() *ag.Routes // in force; nil: there are none
	Position func(context.Context, ag.ReplicaID) (Progress, error)
	Run      func(func()) // runs a function in a goroutine
	// Shelter returns a question that fails where q panics.
	Shelter func(q func(context.Context) (Progress, error)) func(context.Context) (Progress, error)
	Log     *slog.Logger
}

// Judge knows how far copies are behind.
type Judge struct {
	cfg       Config
	primary   sharedquery.Query[Progress] // how far the primary has flushed
	positions positions                   // earlier ones
	current   atomic.Int64                // when this node's copy was last known to equal the primary's, CLOCK_BOOTTIME; 0: never
}

// New returns a judge that knows nothing yet.
func New(cfg Config) *Judge {
	j := &Judge{cfg: cfg}
	j.primary = sharedquery.Query[Progress]{Do: cfg.Shelter(j.sample), Run: cfg.Run, Within: QueryTimeout}
	return j
}

// Primary returns how far the primary has flushed. It was asked after the call.
func (j *Judge) Primary(ctx context.Context) (Progress, error) { return j.primary.Ask(ctx) }

// sample asks the primary for its position.
func (j *Judge) sample(ctx context.Context) (Progress, error) {
	routes := j.cfg.Routes()
	if routes == nil || routes.Primary == "" {
		return Progress{}, errors.New("there is no primary to compare with")
	}
	at := boottime.Now()
	x, err := j.cfg.Position(ctx, routes.Primary)
	if err == nil {
		j.positions.add(x.Epoch, sample{at, x.LSN})
	}
	return x, err
}

// Within reports whether the copy is known to be behind by no more than d. It waits a moment for a copy that is about
// to catch up.
func (j *Judge) Within(ctx context.Context, id ag.ReplicaID, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, min(d, CatchUp))
	defer cancel()
	if routes := j.cfg.Routes(); routes != nil && !j.positions.fresh(routes.Epoch) {
		if _, err := j.primary.Ask(ctx); err != nil {
			j.cfg.Log.Debug("the position of the primary is not known", "error", err) // earlier samples still count
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		x, err := j.cfg.Position(ctx, id)
		if err != nil {
			j.cfg.Log.Debug("the position of a replica is not known", "replica", id, "error", err)
			return false
		}
		behind, known := j.positions.behind(x)
		switch {
		case known && behind <= d:
			return true
		case x.Epoch != j.positions.currentEpoch():
			return false // a position of another history
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// ErrBehind is the error of a replica that has not caught up in time.
var ErrBehind = errors.New("has not replayed yet what the session may have seen")

// Reaches waits a moment until the replica holds all that seen says. If that is zero, or of another epoch than the
// replica, the primary is asked first how far it has flushed, and seen is set to that: it has all that was
// acknowledged.
func (j *Judge) Reaches(ctx context.Context, id ag.ReplicaID, seen *Progress) error {
	ctx, cancel := context.WithTimeout(ctx, CatchUp)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		at, err := j.cfg.Position(ctx, id)
		if err == nil && (*seen == Progress{} || seen.Epoch != at.Epoch) {
			*seen, err = j.Primary(ctx)
		}
		switch {
		case err != nil:
			return fmt.Errorf("ask how far replica %s and the primary are: %w", id, err)
		case at.Epoch == seen.Epoch && at.LSN >= seen.LSN:
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("replica %s %w", id, ErrBehind)
		}
	}
}

// If the primary does not answer, a reader's login is checked against the role facts of the copy that it will read.
// Those may be outdated: a role was dropped, a password has expired. So every node with a copy measures how old its
// copy may be, by asking the primary regularly. A copy keeps its replayed WAL when the primary has died.

// Unknown is the age of a copy that was never compared.
const Unknown = time.Duration(math.MaxInt64)

// Look compares this node's copy with the primary's positions.
func (j *Judge) Look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, QueryTimeout)
	defer cancel()
	routes := j.cfg.Routes()
	if routes == nil || routes.Primary == "" {
		return
	}
	if routes.Primary == routes.Self {
		if routes.WriteOpen {
			j.current.Store(int64(boottime.Now()))
		}
		return
	}
	if _, err := j.primary.Ask(ctx); err != nil {
		return // earlier samples were compared already
	}
	x, err := j.cfg.Position(ctx, routes.Self)
	if err != nil {
		return
	}
	if behind, known := j.positions.behind(x); known {
		j.current.Store(max(j.current.Load(), int64(boottime.Now()-behind)))
	}
}

// Age returns how old this node's copy may be: it holds all that the primary had made durable that long ago, or more.
// While the primary answers, it is at most some seconds plus the copy's lag.
func (j *Judge) Age() time.Duration {
	if at := j.current.Load(); at != 0 {
		return boottime.Now() - time.Duration(at)
	}
	return Unknown
}
