package window

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// Bounds of a window.
const (
	longest   = 24 * time.Hour // a window ends after this, whatever is heard
	quick     = 20 * time.Second
	patient   = 9 * time.Minute // of a step that makes a checkpoint
	patrol    = 2 * time.Second
	maxAnswer = 256 << 10 // of the label and the map of tablespaces
)

// advisory is the lock that pgBackRest takes where it makes a backup. A backup of the primary and one of a secondary
// exclude each other by it.
const advisory = 12340078987004321

// Config is what a Service needs.
type Config struct {
	Connect func(ctx context.Context) (*pgx.Conn, error) // opens a session of the superuser, without time limits
	Leads   func() bool                                  // whether this node is the primary
	Silence time.Duration                                // 0: backup.Silence
	Log     *slog.Logger
}

// Service is a node's part as the primary. Run must be running while steps are done.
type Service struct {
	Config

	busy sync.Mutex // held for the length of a step that uses the session
	mu   sync.Mutex // guards the rest
	now  *window    // nil: there is none
}

// window is a session in which a backup is made.
type window struct {
	id, member string
	conn       *pgx.Conn
	major      int
	begun      time.Time
	heard      time.Time
	working    bool // a step is under way, which may take longer than a silence
	started    bool // the server is in backup mode
}

// New returns a service without a window.
func New(c Config) *Service {
	c.Silence = cmp.Or(c.Silence, backup.Silence)
	return &Service{Config: c}
}

// Run ends windows that nobody uses, until ctx is done.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			s.end(func(*window) bool { return true }, "the agent of the primary stops")
			return nil
		case <-time.After(boottime.UntilNext(min(patrol, s.Silence/4))):
		}
		leads := s.Leads()
		s.end(func(*window) bool { return !leads }, "this node is not the primary any more")
		s.end(func(w *window) bool { return !w.working && time.Since(w.heard) > s.Silence }, "nothing is heard of the replica that makes the backup")
		s.end(func(w *window) bool { return time.Since(w.begun) > longest }, fmt.Sprintf("it took more than %v", longest))
	}
}

// end closes the window that there is if it is meant.
func (s *Service) end(meant func(*window) bool, why string) {
	s.mu.Lock()
	w := s.now
	if w == nil || !meant(w) {
		s.mu.Unlock()
		return
	}
	s.now = nil
	s.mu.Unlock()
	// The session may be in a statement, as in a checkpoint: its connection is closed below it. The end of a session
	// takes the server out of backup mode.
	_ = w.conn.PgConn().Conn().Close()
	s.Log.Info("the window of a backup ended", "replica", w.member, "because", why)
}

// Do does a step for a member.
func (s *Service) Do(ctx context.Context, member string, r backup.StepRequest) (backup.StepAnswer, error) {
	if !s.Leads() {
		if r.Step == backup.Keep {
			return backup.StepAnswer{Gone: true}, nil
		}
		return backup.StepAnswer{}, fail.Unhealthyf("this node is not the primary: the backup on %s cannot go on, and coterie backup run begins another one", member)
	}
	if r.Step == backup.Look {
		return s.look(ctx)
	}
	if r.Step == backup.Open {
		return s.open(ctx, member)
	}
	if r.Step == backup.Close {
		s.end(func(w *window) bool { return w.id == r.Window && w.member == member }, "the backup has ended")
		return backup.StepAnswer{}, nil
	}
	w, err := s.find(member, r.Window)
	if r.Step == backup.Keep {
		return backup.StepAnswer{Gone: err != nil}, nil
	}
	if err != nil {
		return backup.StepAnswer{}, err
	}
	step, known := steps[r.Step]
	if !known {
		return backup.StepAnswer{}, fail.Refusedf("%.20q is no step of a backup that this version knows", r.Step)
	}
	s.busy.Lock()
	defer s.busy.Unlock()
	s.work(w, true)
	defer s.work(w, false)
	limit := quick
	if r.Step == backup.Start {
		limit = patient
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := step(ctx, w)
	if err != nil {
		s.end(func(now *window) bool { return now == w }, "the step "+string(r.Step)+" failed")
		return backup.StepAnswer{}, fail.Error{Kind: fail.Unhealthy, Err: fmt.Errorf("the primary's server, step %s of the backup: %w", r.Step, err)}
	}
	if len(a.Label)+len(a.Spaces) > maxAnswer {
		return backup.StepAnswer{}, errors.New("the map of tablespaces is too long")
	}
	return a, nil
}

// find returns the window of the member, of which something is heard by that.
func (s *Service) find(member, id string) (*window, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil || s.now.id != id || s.now.member != member {
		return nil, fail.Unhealthyf("the primary is not in the backup of %s any more: its server or its agent was restarted, another replica leads, or it heard nothing for %v", member, s.Silence)
	}
	s.now.heard = time.Now()
	return s.now, nil
}

// work notes whether a step of the window is under way.
func (s *Service) work(w *window, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.working, w.heard = on, time.Now()
}

// look returns the timeline that is written. Until the first checkpoint after a promotion pg_control has the one
// before, and that of a secondary can only follow.
func (s *Service) look(ctx context.Context) (a backup.StepAnswer, err error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	conn, err := s.Connect(ctx)
	if err != nil {
		return a, err
	}
	defer closed(conn)
	var control int64
	if a.Timeline, err = timeline(ctx, conn); err != nil {
		return a, err
	}
	if err := conn.QueryRow(ctx, `SELECT timeline_id FROM pg_control_checkpoint()`).Scan(&control); err != nil {
		return a, err
	}
	if uint32(control) != a.Timeline {
		_, err = conn.Exec(ctx, `CHECKPOINT`)
	}
	return a, err
}

// timeline returns the timeline that a primary's server writes.
func timeline(ctx context.Context, conn *pgx.Conn) (uint32, error) {
	var segment string
	if err := conn.QueryRow(ctx, `SELECT pg_walfile_name(pg_current_wal_insert_lsn())`).Scan(&segment); err != nil {
		return 0, err
	}
	if len(segment) != 24 {
		return 0, fmt.Errorf("%q is no segment of WAL", segment)
	}
	tli, err := strconv.ParseUint(segment[:8], 16, 32)
	return uint32(tli), err
}

// open opens a window, if no other member has one.
func (s *Service) open(ctx context.Context, member string) (a backup.StepAnswer, err error) {
	s.end(func(w *window) bool { return w.member == member }, "the replica begins another backup")
	ctx, cancel := context.WithTimeout(ctx, quick)
	defer cancel()
	w := &window{id: rand.Text(), member: member, begun: time.Now(), heard: time.Now()}
	if w.conn, err = s.Connect(ctx); err != nil {
		return a, err
	}
	if a.Timeline, err = timeline(ctx, w.conn); err == nil {
		err = w.conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int / 10000`).Scan(&w.major)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.now != nil {
		err = fail.Unhealthyf("a backup is under way on %s: one at a time is made of a group", s.now.member)
	}
	if err != nil {
		closed(w.conn)
		return backup.StepAnswer{}, err
	}
	s.now, a.Window = w, w.id
	s.Log.Info("the window of a backup opened", "replica", member)
	return a, nil
}

func closed(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the session ends either way
}
