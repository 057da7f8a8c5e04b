package listener

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// How far a copy is behind is bounded without comparing clocks. What the primary has flushed is marked with the moment before it was
// asked, on this node's clock. A copy that has replayed as far as a mark holds everything that was flushed then: it is behind by no
// more than the time since.

// Standing is a position in the history of an epoch: what a primary has flushed, or what a secondary has replayed of a stream from the
// epoch's primary that is open.
type Standing struct {
	Epoch ag.Epoch `json:"epoch"`
	LSN   ag.LSN   `json:"lsn"`
}

const (
	// maxMarks is how many marks are kept. When they are full the older half is thinned: what lies long ago is known more coarsely.
	maxMarks = 128
	// markFor is for how long the primary is not asked again.
	markFor = 20 * time.Millisecond
	// catchUp is how long a login waits at most for a copy to reach the last mark.
	catchUp = time.Second
)

// marks are where the primary of an epoch has stood, oldest first.
type marks struct {
	mu    sync.Mutex
	epoch ag.Epoch // guarded by mu
	list  []mark   // guarded by mu
}

type mark struct {
	at  time.Duration // CLOCK_BOOTTIME
	lsn ag.LSN
}

func (m *marks) add(epoch ag.Epoch, x mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch != m.epoch {
		m.epoch, m.list = epoch, nil
	}
	if len(m.list) == maxMarks {
		i := 0
		m.list = slices.DeleteFunc(m.list, func(mark) bool { i++; return i < maxMarks/2 && i%2 == 0 })
	}
	m.list = append(m.list, x)
}

// fresh says that the primary was asked just now.
func (m *marks) fresh(epoch ag.Epoch) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return epoch == m.epoch && len(m.list) > 0 && boottime.Now()-m.list[len(m.list)-1].at < markFor
}

// of is the epoch of the marks.
func (m *marks) of() ag.Epoch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// behind is by how much a copy at that standing may be behind. It is false where no mark tells.
func (m *marks) behind(x Standing) (time.Duration, bool) {
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

// markPrimary asks the primary how far it is.
func (s *Server) markPrimary(ctx context.Context) (Standing, error) {
	routes := s.cfg.Routes()
	if routes == nil || routes.Primary == "" {
		return Standing{}, errors.New("there is no primary to compare with")
	}
	at := boottime.Now()
	x, err := s.cfg.Position(ctx, routes.Primary)
	if err == nil {
		s.marks.add(x.Epoch, mark{at, x.LSN})
	}
	return x, err
}

// within says that the copy is known to be behind by no more than d. It waits a moment for a copy that is about to be.
func (s *Server) within(ctx context.Context, id ag.ReplicaID, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, min(d, catchUp))
	defer cancel()
	if routes := s.cfg.Routes(); routes != nil && !s.marks.fresh(routes.Epoch) {
		if _, err := s.marked.ask(ctx); err != nil {
			s.log.Debug("the primary does not say how far it is", "error", err) // what it said before still counts
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		x, err := s.cfg.Position(ctx, id)
		if err != nil {
			s.log.Debug("a replica does not say how far it is", "replica", id, "error", err)
			return false
		}
		behind, known := s.marks.behind(x)
		switch {
		case known && behind <= d:
			return true
		case x.Epoch != s.marks.of():
			return false // a position of another history
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// pick returns where the session goes now, passing over copies that are further behind than the client allows.
func (c *client) pick(ctx context.Context) (r route, next <-chan struct{}, ok bool) {
	if p := c.picked; p != nil { // a moment ago: whoever took a turn keeps it, unless the routes are others
		c.picked = nil
		select {
		case <-p.changed:
		default:
			return *p, p.changed, true
		}
	}
	var passed []ag.ReplicaID
	for {
		r, next, ok = c.srv.pick(c.intent, passed...)
		if !ok || c.maxLag == 0 || r.fellBack || c.srv.within(ctx, r.ID, c.maxLag) {
			return r, next, ok
		}
		c.srv.counts.lagged.Add(1)
		c.log.Debug("passed over: too far behind, or not known to be near", "replica", r.ID, "max_lag", c.maxLag)
		passed = append(passed, r.ID)
	}
}

// takeLag finds by how much a reader's copy may be behind: by the startup packet, else by what was set for the role or the database.
// The primary, to which writers go, is never behind.
func (c *client) takeLag(ctx context.Context) *pgwire.Error {
	if c.intent != ag.ReadOnly {
		return nil
	}
	if c.maxLag = c.start.MaxLag; c.maxLag == 0 {
		if text := c.srv.defaults(ctx, c.start.User, c.start.Database)["coterie.max_lag"]; text != "" {
			var bad *pgwire.Error
			if c.maxLag, bad = startup.ParseLag(pgwire.Parameter{Name: "coterie.max_lag", Value: text}); bad != nil {
				return bad
			}
		}
	}
	if c.maxLag > 0 && c.srv.cfg.Position == nil {
		return pgwire.Fatal("max_lag", pgwire.StateNotSupported, "coterie.max_lag is not available here")
	}
	return nil
}
