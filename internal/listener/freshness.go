package listener

import (
	"context"
	"errors"
	"math"
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

// Progress is a position in the history of an epoch: what a primary has flushed, or what a secondary has replayed of a stream from the
// epoch's primary that is open.
type Progress struct {
	Epoch ag.Epoch `json:"epoch"`
	LSN   ag.LSN   `json:"lsn"`
}

const (
	// maxSamples is how many marks are kept. When they are full the older half is thinned: what lies long ago is known more coarsely.
	maxSamples = 128
	// sampleFor is for how long the primary is not asked again.
	sampleFor = 20 * time.Millisecond
	// catchUp is how long a login waits at most for a copy to reach the last mark.
	catchUp = time.Second
)

// positionLog are where the primary of an epoch has stood, oldest first.
type positionLog struct {
	mu    sync.Mutex
	epoch ag.Epoch // guarded by mu
	list  []sample // guarded by mu
}

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

// fresh says that the primary was asked just now.
func (m *positionLog) fresh(epoch ag.Epoch) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return epoch == m.epoch && len(m.list) > 0 && boottime.Now()-m.list[len(m.list)-1].at < sampleFor
}

// currentEpoch is the epoch of the marks.
func (m *positionLog) currentEpoch() ag.Epoch {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// behind is by how much a copy at that standing may be behind. It is false where no mark tells.
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

// samplePrimary asks the primary how far it is.
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

// within says that the copy is known to be behind by no more than d. It waits a moment for a copy that is about to be.
func (s *Server) within(ctx context.Context, id ag.ReplicaID, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, min(d, catchUp))
	defer cancel()
	if routes := s.cfg.Routes(); routes != nil && !s.positions.fresh(routes.Epoch) {
		if _, err := s.progress.ask(ctx); err != nil {
			s.log.Debug("the primary does not say how far it is", "error", err) // what it said before still counts
		}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		x, err := s.cfg.Position(ctx, id)
		if err != nil {
			s.log.Debug("a replica does not say how far it is", "replica", id, "error", err)
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

// A reader whose primary does not answer is judged by the role facts of the copy that he is to read, and those may be old: a role that
// was dropped, a password that has expired. So every node with a copy keeps track of how old that may be, by asking the primary now
// and then where it is; what a copy has replayed once stays replayed when the primary is gone.

// UnknownAge is that of a copy of which nothing is known.
const UnknownAge = time.Duration(math.MaxInt64)

// ageEvery is how often the primary is asked: how old a copy may be is known about twice as exactly.
const ageEvery = 5 * time.Second

// keepAge keeps s.current until the end of the server begins.
func (s *Server) keepAge() {
	t := time.NewTicker(ageEvery)
	defer t.Stop()
	for {
		s.lookAge()
		select {
		case <-t.C:
		case <-s.closed:
			return
		}
	}
}

// lookAge compares this node's copy with where the primary has been.
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
		return // what it said before still counts, and has been compared
	}
	x, err := s.cfg.Position(ctx, routes.Self)
	if err != nil {
		return
	}
	if behind, known := s.positions.behind(x); known {
		s.current.Store(max(s.current.Load(), int64(boottime.Now()-behind)))
	}
}

// Age is how old this node's copy may be: it holds all that the primary had made durable that long ago, or more. It is at most some
// seconds, and those of its lag, while the primary answers.
func (s *Server) Age() time.Duration {
	if at := s.current.Load(); at != 0 {
		return boottime.Now() - time.Duration(at)
	}
	return UnknownAge
}

// ownJudgement returns the role facts of the copy that a reader is to read, where those may decide.
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

// queryTimeout bounds one question.
const queryTimeout = 2 * time.Second

// sharedQuery asks a question for many at once. One is on its way at a time, and its answer serves everybody who asked before it was
// sent: an answer may not be older than what it is needed for.
type sharedQuery[T any] struct {
	query func(context.Context) (T, error)
	run   func(func()) // runs it in a goroutine that is waited for

	mu      sync.Mutex
	next    *answer[T] // to a question that is not sent yet; guarded by mu
	running bool       // guarded by mu
}

type answer[T any] struct {
	there chan struct{} // closed when it is there
	value T
	err   error
}

// ask returns the answer to a question that was sent after the call.
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

// serve sends questions until nobody asks any more.
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
