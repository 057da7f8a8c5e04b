// Package backups watches the backups of a group from one of its nodes: how the server's archiving is, when the last
// backup was made, what a node lacks that could take over. After a failover it has the new primary archive again what
// the old one may not have archived.
//
// It makes no backup and configures nothing: the commands do. Start reading at Service.
package backups

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/backup"
	"github.com/coteriedb/coterie/internal/backup/planfile"
	"github.com/coteriedb/coterie/internal/backup/window"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/postgres"
)

// How often it is looked whether the plan has changed, and at the server and the repository; how long one look may
// take.
const (
	everyPlan       = 500 * time.Millisecond
	everyServer     = 5 * time.Second
	everyRepository = time.Minute
	limit           = 30 * time.Second
)

// Server is the part of *postgres.Instance that a Service asks.
type Server interface {
	Archiver(ctx context.Context) (postgres.Archiver, error)
	Unarchived() (postgres.Unarchived, error)
	ArchiveAgain(before ag.Timeline) (int, error)
}

// Tool is the part of a backup.Tool that a Service asks.
type Tool interface {
	Version(ctx context.Context) (string, error)
	ArchiveCommand() string
	Backups(ctx context.Context) (backup.Catalog, error)
	Reads(ctx context.Context, data, dir string) error
}

// Config is what a Service needs.
type Config struct {
	Layout config.Layout
	Server Server
	Leads  func() bool // whether this node leads, by its last decision
	Log    *slog.Logger
	// Connect opens a session on the server for the window of a backup.
	Connect func(ctx context.Context) (*pgx.Conn, error)
	// Open returns the node's plan and its tool; nil: planfile.Open.
	Open func() (backup.Plan, Tool, error)
}

// Service watches. Make it with New.
type Service struct {
	Config
	Windows  *window.Service // for the backups that secondaries make
	latest   atomic.Pointer[catalog.Backup]
	asked    time.Time // the repository, last
	last     backup.Backup
	problem  string
	version  string
	gathered gathering   // the WAL that waits, lately
	asking   chan string // the answer of a look at the directory askedOf that was not over in time; nil: none
	askedOf  string
	archived ag.Timeline // for this one earlier WAL was archived again; 0: not known yet
}

// New returns a service that has seen nothing.
func New(c Config) *Service {
	if c.Open == nil {
		c.Open = func() (backup.Plan, Tool, error) {
			p, t, err := planfile.Open(c.Layout)
			return p, t, err
		}
	}
	return &Service{Config: c, Windows: window.New(window.Config{Connect: c.Connect, Leads: c.Leads, Log: c.Log})}
}

// Latest returns what was seen last; nil before the first look.
func (s *Service) Latest() *catalog.Backup { return s.latest.Load() }

// ArchiveCommand returns the archive_command of the node's plan; "" if there is none that can be read.
func (s *Service) ArchiveCommand() string {
	_, tool, err := s.Open()
	if err != nil {
		return ""
	}
	return tool.ArchiveCommand()
}

// Reads reports whether the tool of the plan knows the version of the cluster in a data directory. It may write into
// dir, which the caller removes.
func (s *Service) Reads(ctx context.Context, data, dir string) error {
	_, tool, err := s.Open()
	if err != nil {
		return err
	}
	return tool.Reads(ctx, data, dir)
}

// Run watches until the context ends.
func (s *Service) Run(ctx context.Context) error {
	var windows sync.WaitGroup
	defer windows.Wait()
	windows.Go(func() { _ = s.Windows.Run(ctx) }) // it ends with ctx
	var looked, changed time.Time
	retry.Every(ctx, everyPlan, func() {
		if at := s.changed(); time.Since(looked) > everyServer || !at.Equal(changed) {
			looked, changed = time.Now(), at
			s.look(ctx)
		}
	})
	return nil
}

// changed returns when the plan was written; zero: there is none.
func (s *Service) changed() time.Time {
	st, err := os.Stat(planfile.Path(s.Layout))
	if err != nil {
		return time.Time{}
	}
	return st.ModTime()
}

func (s *Service) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p, tool, err := s.Open()
	if errors.Is(err, planfile.ErrNone) {
		s.asked = time.Time{}
		s.latest.Store(&catalog.Backup{})
		return
	}
	if err != nil {
		s.latest.Store(&catalog.Backup{Enabled: true, Problem: err.Error()})
		return
	}
	out := catalog.Backup{Enabled: true, Secondary: true, Tool: p.Tool, Stanza: p.Stanza, Repository: p.Repository.String()}
	// The server comes first: a repository that does not answer uses up the time.
	if a, err := s.Server.Archiver(ctx); err == nil && !a.Recovery {
		archiver(&out, a, a.Command == tool.ArchiveCommand())
		s.waiting(&out, p)
		if s.Leads() && a.Mode == "on" && out.Ours {
			s.archiveAgain(a.Timeline)
		}
	}
	if !s.asked.IsZero() {
		s.tell(out)
	}
	if time.Since(s.asked) > everyRepository {
		s.askRepository(ctx, tool)
		s.tell(out)
	}
}

// tell stores what was seen of the server, with what the repository said last.
func (s *Service) tell(out catalog.Backup) {
	out.Version, out.Problem, out.Last, out.LastLabel, out.LastNode = s.version, s.problem, s.last.Ended, s.last.Label, s.last.Node
	s.latest.Store(&out)
}

// askRepository asks for the version of the tool and the newest backup. If it does not answer, the last answer stays.
func (s *Service) askRepository(ctx context.Context, tool Tool) {
	s.asked = time.Now()
	version, err := tool.Version(ctx)
	if err == nil {
		s.version = version
		var c backup.Catalog
		if c, err = tool.Backups(ctx); err == nil {
			s.last, _ = c.Last()
		}
	}
	if s.problem = ""; err != nil {
		s.problem = err.Error()
		s.Log.Warn("the repository of the backups does not answer", "err", err)
	}
}

// archiver adds what the primary's server says.
func archiver(out *catalog.Backup, a postgres.Archiver, ours bool) {
	out.Primary, out.On, out.Ours = true, a.Mode != "off", ours
	out.Archived, out.Failed = a.Archived, a.Failed
	out.Timeline, out.SegmentSize = int64(a.Timeline), a.SegmentSize
	if a.LastArchived != nil && a.ArchivedAt != nil {
		out.LastArchived, out.ArchivedAt = *a.LastArchived, *a.ArchivedAt
	}
	if a.LastFailed != nil && a.FailedAt != nil {
		out.LastFailed, out.FailedAt = *a.LastFailed, *a.FailedAt
	}
}

// markFile says for which timeline earlier WAL was archived again, so that a restart of the agent does not repeat it.
func (s *Service) markFile() string { return filepath.Join(s.Layout.Backup(), "archived-again") }

// archiveAgain has the WAL of earlier timelines archived once more, once for each timeline that this node writes.
func (s *Service) archiveAgain(tli ag.Timeline) {
	mark := strconv.FormatUint(uint64(tli), 10)
	if s.archived == 0 {
		if b, err := os.ReadFile(s.markFile()); err == nil && string(b) == mark {
			s.archived = tli
		}
	}
	if s.archived == tli {
		return
	}
	n, err := s.Server.ArchiveAgain(tli)
	if err == nil {
		err = durable.Replace(s.markFile(), []byte(mark), 0o600)
	}
	if err != nil {
		s.Log.Warn("WAL that the last primary may not have archived", "err", err)
		return
	}
	s.archived = tli
	s.Log.Info("archiving again what the last primary may not have archived", "files", n, "timeline", tli)
}
