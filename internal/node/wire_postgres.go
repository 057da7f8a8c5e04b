package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/settings"

	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/keeper"
)

// copyFile keeps the copy id inside the data directory; pg_rewind and backups overwrite it, which is how a copy that was
// changed behind the agent is told from the one it made.
const copyFile = "coterie.copy"

// Instance is the PostgreSQL server as the agent wants it.
type Instance struct {
	*postgres.Instance
	Layout config.Layout
	self   ag.ReplicaID

	systemID func() string // of the group; nil: any will do
	log      *slog.Logger
	foreign  atomic.Pointer[string] // why the data directory is not this node's, when that was last said
}

func (i *Instance) data() string { return i.Instance.Config().PGData }

func (i *Instance) Data() ag.DataState {
	if tree.HalfSeeded(i.data(), i.Layout.State()) || i.Instance.Interrupted() {
		return ag.DataPartial
	}
	id, err := i.Instance.SystemID()
	switch {
	case err == nil && i.systemID != nil && i.systemID() != "" && id != i.systemID():
		return i.isForeign(fmt.Sprintf("it holds a cluster with the system identifier %s; the group's is %s", id, i.systemID()))
	case err == nil:
		i.foreign.Store(nil)
		return ag.DataPresent
	case !errors.Is(err, fs.ErrNotExist):
		return i.isForeign(err.Error())
	}
	if why := i.Instance.MountLost(); why != "" {
		return i.isForeign(why)
	}
	entries, err := os.ReadDir(i.data())
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return ag.DataEmpty
	}
	return i.isForeign("there are files in it, and no database cluster")
}

// isForeign says once why nothing touches the data directory: it is not this node's to change.
func (i *Instance) isForeign(why string) ag.DataState {
	if old := i.foreign.Swap(&why); i.log != nil && (old == nil || *old != why) {
		i.log.Error("the data directory is left alone", "dir", i.data(), "because", why)
	}
	return ag.DataForeign
}

func (i *Instance) InsideCopy() (ag.CopyID, error) {
	b, err := os.ReadFile(filepath.Join(i.data(), copyFile))
	return ag.CopyID(strings.TrimSpace(string(b))), err
}

func (i *Instance) WriteCopy(id ag.CopyID) error {
	if err := durable.Replace(filepath.Join(i.data(), copyFile), []byte(string(id)+"\n"), 0o600); err != nil {
		return err
	}
	return i.Instance.RememberMount()
}

func (i *Instance) Observe(ctx context.Context) (agent.Observation, error) {
	o, err := i.Instance.Observe(ctx)
	if err != nil {
		return agent.Observation{}, err
	}
	out := agent.Observation{
		InRecovery: o.InRecovery, Position: ag.Position{Timeline: o.Timeline, LSN: o.Flush}, Replay: o.Replay,
		Receiving: o.WalReceiver != nil, Streamed: o.Receive != 0, Waiters: o.SyncRepWaiters,
	}
	out.Doubled = doubled(o.Replication)
	if o.WalReceiver != nil && o.WalReceiver.ReceivedTLI > out.Position.Timeline {
		out.Position.Timeline = o.WalReceiver.ReceivedTLI
	}
	s, err := settings.ParseSync(o.SyncNames)
	if err != nil {
		out.N = -1 // not ours, whatever it is
		return out, nil
	}
	out.N = s.Num
	for k, name := range s.Names {
		m, e, ok := settings.ParseApplication(name)
		switch {
		case !ok:
			m, e = ag.ReplicaID(name), 0
		case k == 0:
			out.SyncEpoch = e
		}
		if e != out.SyncEpoch {
			out.SyncEpoch = 0
		}
		out.P = append(out.P, m)
	}
	return out, nil
}

// doubled finds the members for which more than one walsender of a name runs: PostgreSQL counts each of them.
func doubled(senders []postgres.Walsender) (out []ag.ReplicaID) {
	seen := map[string]int{}
	for _, w := range senders {
		if m, e, ok := settings.ParseApplication(w.Application); ok {
			name := settings.Application(m, e)
			if seen[name]++; seen[name] == 2 {
				out = append(out, m)
			}
		}
	}
	return out
}

func (i *Instance) EndWalsenders(ctx context.Context, member ag.ReplicaID) error {
	return i.Instance.EndWalsenders(ctx, string(member))
}

func (i *Instance) Promote(ctx context.Context, tli ag.Timeline) (ag.LSN, error) {
	return i.Instance.Promote(ctx, tli, 5*time.Minute)
}

func (i *Instance) SetSync(ctx context.Context, p []ag.ReplicaID, n int, e ag.Epoch) error {
	s := settings.Sync{Num: n}
	for _, id := range p {
		s.Names = append(s.Names, settings.Application(id, e))
	}
	if n == 0 {
		s.Names = nil
	}
	return i.Instance.SetSync(ctx, s)
}

func (i *Instance) EndConflicts(ctx context.Context) error { return i.Instance.PauseConflicts(ctx) }

func (i *Instance) RestoreConflicts(ctx context.Context) error {
	return i.Instance.RestoreConflicts(ctx)
}

func (i *Instance) Rewind(ctx context.Context, note func(string)) error { return i.rewind(ctx, note) }

func (i *Instance) ProbeCommit(ctx context.Context) (<-chan error, func(context.Context) bool, error) {
	done, pid, err := i.Instance.ProbeCommit(ctx)
	return done, func(ctx context.Context) bool { return i.Instance.WaitingInSyncRep(ctx, pid) }, err
}

func (i *Instance) EnsureSlots(ctx context.Context, at map[ag.ReplicaID]ag.LSN) error {
	var want []string
	lsn := map[string]ag.LSN{}
	for id, l := range at {
		want = append(want, settings.SlotName(id))
		lsn[settings.SlotName(id)] = l
	}
	return i.Instance.EnsureSlots(ctx, want, lsn)
}

func (i *Instance) KeepFork(ctx context.Context, from ag.Position) (string, error) {
	dir := filepath.Join(i.Layout.Forked(), time.Now().UTC().Format("20060102T150405.000Z"))
	return dir, i.Instance.KeepFork(ctx, from, dir)
}

func (i *Instance) rewind(ctx context.Context, note func(string)) error {
	if err := i.Instance.WriteHBA(); err != nil {
		return err
	}
	c := i.Instance.Config()
	return i.Instance.Rewind(ctx, postgres.RewindOptions{
		Progress:       note,
		SourceConninfo: fmt.Sprintf("host=%s port=5432 user=%s dbname=postgres", settings.QuoteConninfo(i.Layout.Upstream()), settings.QuoteConninfo(c.Superuser)),
	})
}

// server is the keeper as the agent wants it.
type server struct {
	*keeper.Client
	pg     *postgres.Instance
	layout config.Layout
	exits  chan string
}

func newServer(c *keeper.Client, pg *postgres.Instance, l config.Layout) *server {
	s := &server{Client: c, pg: pg, layout: l, exits: make(chan string, 4)}
	go func() { // ends when the keeper's connection does
		defer close(s.exits)
		for e := range c.Exits() {
			if e.Fenced {
				e.Status = "fenced: " + e.Status
			}
			s.exits <- e.Status
		}
	}()
	return s
}

func (s *server) Start(ctx context.Context, generation uint64) error {
	return s.start(ctx, keeper.StartRequest{Generation: generation})
}

func (s *server) StartPrimary(ctx context.Context, generation uint64, e ag.Epoch) error {
	return s.start(ctx, keeper.StartRequest{Generation: generation, Leader: true, Epoch: e})
}

func (s *server) start(ctx context.Context, r keeper.StartRequest) error {
	if err := s.pg.WriteHBA(); err != nil {
		return err
	}
	if err := s.pg.PrepareStart(ctx); err != nil {
		return err
	}
	r.Postgres, r.PGData, r.Args, r.Env = s.pg.Binary(), s.pg.Config().PGData, s.pg.Args(), serverEnv()
	r.LogFile = filepath.Join(s.layout.Log(), "postgres.log")
	s.pg.MarkLogs(r.LogFile)
	_, err := s.Client.Start(ctx, r)
	return err
}

// serverEnv is the environment of the server: nothing of the administrator's shell but the time zone and where programs are.
func serverEnv() []string {
	env := []string{"LC_ALL=C.UTF-8"}
	for _, k := range []string{"PATH", "TZ", "LD_LIBRARY_PATH", "HOME"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

func (s *server) Exits() <-chan string { return s.exits }

// Stop waits while a server is starting, which the keeper does not interrupt: an agent that gave up then would end and leave the
// server behind.
func (s *server) Stop(ctx context.Context, budget time.Duration) (bool, error) {
	for {
		clean, err := s.Client.Stop(ctx, "fast", budget)
		if !errors.Is(err, keeper.ErrBusy) {
			return clean, err
		}
		select {
		case <-ctx.Done():
			return false, errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *server) Status(ctx context.Context) (agent.KeeperState, error) {
	st, err := s.Client.Status(ctx)
	out := agent.KeeperState{KeeperPID: st.KeeperPID, ServerPID: st.Postmaster, Generation: st.Generation}
	if st.Armed {
		out.Armed = st.Epoch
	}
	return out, err
}

// NewInstance makes the adapter of the configured server.
func NewInstance(cfg config.Config, l config.Layout, log *slog.Logger) (*postgres.Instance, error) {
	found, err := programs.Inspect(context.Background(), cfg.PostgreSQL.BinDir)
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL in %s: %w; correct postgresql.bin_dir in %s", cfg.PostgreSQL.BinDir, err, filepath.Join(l.Dir, config.File))
	}
	return postgres.New(postgres.Config{
		Install: found, PGData: cfg.PostgreSQL.Data, ConfigFile: cfg.PostgreSQL.ConfigFile, SocketDir: l.Sockets(),
		UpstreamDir: l.Upstream(), StateDir: l.State(), LogDir: l.Log(), Superuser: cfg.PostgreSQL.Superuser,
		Slot: settings.SlotName(ag.ReplicaID(cfg.Node)), Logger: log,
	}), nil
}
