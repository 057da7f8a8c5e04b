package pgserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// Server is the keeper as the agent wants it.
type Server struct {
	*keeper.Client
	pg     *postgres.Instance
	layout config.Layout
	exits  chan string
	log    *serverlog.Reader
	params *Parameters
	fences atomic.Uint64

	seen seen
}

// Fences returns how often the server was fenced while this agent was attached to its keeper.
func (s *Server) Fences() uint64 { return s.fences.Load() }

// seen is the keeper's state as others than the agent's loop last asked for it.
type seen struct {
	mu    sync.Mutex // one question at a time
	state keeper.State
	err   error // of the last question
	at    time.Time
}

// seenFor is how old a state may be that is shown.
const seenFor = 100 * time.Millisecond

// Seen returns the keeper's state, at most 100 ms old. However many ask at once, the keeper is asked once: the
// connection that keeps the deadline carries nothing that callers can multiply. It takes 300 ms at most, and then
// returns the state of before with the error, as it does to those who ask in the next 100 ms.
func (s *Server) Seen() (keeper.State, error) {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	if time.Since(s.seen.at) < seenFor {
		return s.seen.state, s.seen.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*seenFor)
	defer cancel()
	st, err := s.Client.Status(ctx)
	if err == nil {
		s.seen.state = st
	}
	s.seen.err, s.seen.at = err, time.Now() // also after a failure, or every caller would wait in turn
	return s.seen.state, err
}

// NewServer returns the keeper of pg. Its exits end when the keeper's connection does. log is told of each start, and
// params gives the settings that the server is to have from its start.
func NewServer(c *keeper.Client, pg *postgres.Instance, log *serverlog.Reader, params *Parameters) *Server {
	s := &Server{Client: c, pg: pg, layout: params.Layout, exits: make(chan string, 4), log: log, params: params}
	go func() { // ends when the keeper's connection does
		defer close(s.exits)
		for e := range c.Exits() {
			if e.Fenced {
				s.fences.Add(1)
				e.Status = "fenced: " + e.Status
			}
			s.exits <- e.Status
		}
	}()
	return s
}

// Start starts the server as a standby.
func (s *Server) Start(ctx context.Context, generation uint64) error {
	return s.start(ctx, keeper.StartRequest{Generation: generation})
}

// StartPrimary starts the server as the primary of an epoch whose deadline the keeper holds.
func (s *Server) StartPrimary(ctx context.Context, generation uint64, e ag.Epoch) error {
	return s.start(ctx, keeper.StartRequest{Generation: generation, Leader: true, Epoch: e})
}

func (s *Server) start(ctx context.Context, r keeper.StartRequest) error {
	if err := s.pg.WriteHBA(); err != nil {
		return err
	}
	set, err := s.params.ForStart()
	if err != nil {
		return err
	}
	if err := s.pg.PrepareStart(ctx, set); err != nil {
		return err
	}
	if r.Args, err = s.pg.StartArgs(r.Leader); err != nil {
		return err
	}
	r.Postgres, r.PGData, r.Env = s.pg.Binary(), s.pg.Config().PGData, serverEnv(s.layout.Dir)
	r.LogFile = filepath.Join(s.layout.Log(), "postgres.log")
	s.pg.MarkLogs(r.LogFile)
	s.log.ServerStarts()
	_, err = s.Client.Start(ctx, r)
	return err
}

// serverEnv is the environment of the server: nothing of the administrator's shell but the time zone and where programs
// are. COTERIE_NODE tells an archive_command, which is the same on every replica, where this node keeps its
// configuration.
func serverEnv(dir string) []string {
	env := []string{"LC_ALL=C.UTF-8", "COTERIE_NODE=" + dir}
	for _, k := range []string{"PATH", "TZ", "LD_LIBRARY_PATH", "HOME"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// Exits receives how each postmaster ended.
func (s *Server) Exits() <-chan string { return s.exits }

// Stop waits while a server is starting, which the keeper does not interrupt: an agent that gave up then would end and
// leave the server behind.
func (s *Server) Stop(ctx context.Context, budget time.Duration) (bool, error) {
	var clean bool
	var err error
	ended := retry.Until(ctx, 20*time.Millisecond, func() (bool, error) {
		clean, err = s.Client.Stop(ctx, "fast", budget)
		return !errors.Is(err, keeper.ErrBusy), nil
	})
	return clean, errors.Join(ended, err)
}

// Status returns the keeper's state. Only the agent's loop calls it; every other caller uses Seen.
func (s *Server) Status(ctx context.Context) (agent.KeeperState, error) {
	st, err := s.Client.Status(ctx)
	out := agent.KeeperState{KeeperPID: st.KeeperPID, ServerPID: st.Postmaster, Generation: st.Generation}
	if st.Armed {
		out.Armed = st.Epoch
	}
	return out, err
}
