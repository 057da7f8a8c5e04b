package listener

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/startup"
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
	// catchUp is how long a login waits at most for a copy to reach the last sample.
	catchUp = time.Second
)

// positionLog is the list of the primary's positions in an epoch, oldest first.
type positionLog struct {
	mu    sync.Mutex
	epoch ag.Epoch // guarded by mu
	list  []sample // guarded by mu
}

// sample is a position of the primary.
type sample struct {
	at  time.Duration // CLOCK_BOOTTIME
	lsn ag.LSN
}

func (m *positionLog) add(epoch ag.Epoch, x sample) {
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
func (m *positionLog) fresh(epoch ag.Epoch) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return epoch == m.epoch && len(m.list) > 0 && boottime.Now()-m.list[len(m.list)-1].at < sampleFor
}

// currentEpoch returns the epoch of the samples.
func (m *positionLog) currentEpoch() ag.Epoch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// behind returns by how much a copy at that position may be behind. It reports false if no sample tells.
func (m *positionLog) behind(x Progress) (time.Duration, bool) {
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

// samplePrimary asks the primary for its position.
func (s *Server) samplePrimary(ctx context.Context) (Progress, error) {
	routes := s.cfg.Routes()
	if routes == nil || routes.Primary == "" {
		return Progress{}, errors.New("there is no primary to compare with")
	}
	at := boottime.Now()
	x, err := s.cfg.Position(ctx, routes.Primary)
	if err == nil {
		s.positions.add(x.Epoch, sample{at, x.LSN})
	}
	return x, err
}

// within reports whether the copy is known to be behind by no more than d. It waits a moment for a copy that is about
// to catch up.
func (s *Server) within(ctx context.Context, id ag.ReplicaID, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, min(d, catchUp))
	defer cancel()
	if routes := s.cfg.Routes(); routes != nil && !s.positions.fresh(routes.Epoch) {
		if _, err := s.progress.ask(ctx); err != nil {
			s.log.Debug("the position of the primary is not known", "error", err) // earlier samples still count
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		x, err := s.cfg.Position(ctx, id)
		if err != nil {
			s.log.Debug("the position of a replica is not known", "replica", id, "error", err)
			return false
		}
		behind, known := s.positions.behind(x)
		switch {
		case known && behind <= d:
			return true
		case x.Epoch != s.positions.currentEpoch():
			return false // a position of another history
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return false
		}
	}
}

// A reader that goes on at another copy sees nothing there go back: the copy that it has left had replayed no more than
// its primary had flushed by then, and the next one has to reach that first.

// reaches waits a moment until the replica of r holds all that the session x, a reader, may have seen where it was. The
// primary is asked how far that is once x has left there, and again in each epoch: it has all that was acknowledged.
func (c *client) reaches(ctx context.Context, r route, x *session) error {
	s := c.srv
	routes := s.cfg.Routes()
	if c.intent != ag.ReadOnly || s.cfg.Position == nil || routes != nil && routes.Primary == r.ID {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		at, err := s.cfg.Position(ctx, r.ID)
		if err == nil && (x.moving.seen == Progress{} || x.moving.seen.Epoch != at.Epoch) {
			x.moving.seen, err = s.progress.ask(ctx)
		}
		switch seen := x.moving.seen; {
		case err != nil:
			return fmt.Errorf("ask how far replica %s and the primary are: %w", r.ID, err)
		case at.Epoch == seen.Epoch && at.LSN >= seen.LSN:
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			s.counts.lagged.Add(1)
			return fmt.Errorf("replica %s has not replayed yet what the session may have seen", r.ID)
		}
	}
}

// pick returns where the session goes now. It passes over copies that are further behind than the client allows.
func (c *client) pick(ctx context.Context) (r route, next <-chan struct{}, ok bool) {
	if p := c.picked; p != nil { // chosen a moment ago: the turn counts, unless the routes have changed
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

// takeLag finds by how much a reader's copy may be behind: by the startup packet, else by the defaults of the role or
// the database. Writers go to the primary, which is never behind.
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

// If the primary does not answer, a reader's login is checked against the role facts of the copy that it will read.
// Those may be outdated: a role was dropped, a password has expired. So every node with a copy measures how old its
// copy may be, by asking the primary regularly. A copy keeps its replayed WAL when the primary has died.

// UnknownAge is the age of a copy that was never compared.
const UnknownAge = time.Duration(math.MaxInt64)

// ageEvery is how often the primary is asked. The age of a copy is known with about twice that precision.
const ageEvery = 5 * time.Second

// keepAge keeps s.current up to date until the server begins to close.
func (s *Server) keepAge() {
	t := time.NewTicker(ageEvery)
	defer t.Stop()
	for {
		s.sheltered("comparing the copy with the primary", s.lookAge)
		select {
		case <-t.C:
		case <-s.closed:
			return
		}
	}
}

// lookAge compares this node's copy with the primary's positions.
func (s *Server) lookAge() {
	ctx, cancel := context.WithTimeout(s.life, queryTimeout)
	defer cancel()
	routes := s.cfg.Routes()
	if routes == nil || routes.Primary == "" {
		return
	}
	if routes.Primary == routes.Self {
		if routes.WriteOpen {
			s.current.Store(int64(boottime.Now()))
		}
		return
	}
	if _, err := s.progress.ask(ctx); err != nil {
		return // earlier samples were compared already
	}
	x, err := s.cfg.Position(ctx, routes.Self)
	if err != nil {
		return
	}
	if behind, known := s.positions.behind(x); known {
		s.current.Store(max(s.current.Load(), int64(boottime.Now()-behind)))
	}
}

// Age returns how old this node's copy may be: it holds all that the primary had made durable that long ago, or more.
// While the primary answers, it is at most some seconds plus the copy's lag.
func (s *Server) Age() time.Duration {
	if at := s.current.Load(); at != 0 {
		return boottime.Now() - time.Duration(at)
	}
	return UnknownAge
}

// ownJudgement returns the role facts of the copy that a reader will read, if they are recent enough to decide.
func (c *client) ownJudgement(ctx context.Context, r route) (Role, error) {
	role, err := c.roleFacts(ctx, r)
	if err != nil || c.intent == ag.ReadWrite || role.Age <= c.srv.cfg.AuthStaleness {
		return role, err
	}
	c.log.Warn("a reader is refused: the primary does not answer, and the replica's copy may be too old to say who may log in",
		"replica", r.ID, "auth_staleness", c.srv.cfg.AuthStaleness)
	bad := pgwire.Fatal("stale roles", pgwire.StateCannotConnect, "the primary does not answer, and the data of replica %s may be too old to say who may log in", r.ID)
	bad.Hint = "Try again when the group has a primary. How old it may be is auth_staleness in coterie.yaml, " + c.srv.cfg.AuthStaleness.String() + " here."
	return role, bad
}

// queryTimeout bounds one query.
const queryTimeout = 2 * time.Second

// sharedQuery runs one query for many callers. One query runs at a time, and its answer serves all callers that asked
// before it was sent: an answer may not be older than the need for it.
type sharedQuery[T any] struct {
	query func(context.Context) (T, error)
	run   func(func()) // runs it in a goroutine that is waited for at the end

	mu      sync.Mutex
	next    *answer[T] // of the query that is not sent yet; guarded by mu
	running bool       // guarded by mu
}

// answer is the result of one query.
type answer[T any] struct {
	there chan struct{} // closed when value and err are set
	value T
	err   error
}

// ask returns the answer to a query that was sent after the call.
func (s *sharedQuery[T]) ask(ctx context.Context) (T, error) {
	s.mu.Lock()
	if s.next == nil {
		s.next = &answer[T]{there: make(chan struct{})}
	}
	a := s.next
	if !s.running {
		s.running = true
		s.run(s.serve)
	}
	s.mu.Unlock()
	select {
	case <-a.there:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// serve sends queries until there are no callers.
func (s *sharedQuery[T]) serve() {
	for {
		s.mu.Lock()
		a := s.next
		s.next = nil
		if a == nil {
			s.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
		a.value, a.err = s.query(ctx)
		cancel()
		close(a.there)
	}
}
