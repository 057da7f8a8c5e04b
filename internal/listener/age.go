package listener

import (
	"context"
	"math"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
)

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
	ctx, cancel := context.WithTimeout(s.life, questionTime)
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
	if _, err := s.marked.ask(ctx); err != nil {
		return // what it said before still counts, and has been compared
	}
	x, err := s.cfg.Position(ctx, routes.Self)
	if err != nil {
		return
	}
	if behind, known := s.marks.behind(x); known {
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
