package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/postgres"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/settings"
)

// CopyFile keeps the copy id inside the data directory; pg_rewind and backups overwrite it. It so distinguishes a copy
// that was changed without the agent from the one that the agent made.
const CopyFile = "coterie.copy"

// Instance is the PostgreSQL server as the agent wants it.
type Instance struct {
	*postgres.Instance
	Layout config.Layout
	Self   ag.ReplicaID

	GroupSystemID func() string      // of the group; nil: any will do
	Owns          func(pid int) bool // whether this node's agent opened the connection of that walsender; nil: not known
	Log           *slog.Logger
	Seen          *Observed              // gets each observation; nil: nobody looks
	foreign       atomic.Pointer[string] // why the data directory is not this node's, when that was last said
}

func (i *Instance) data() string { return i.Instance.Config().PGData }

// Data returns what is in the data directory. A cluster of another group, and files that are not a cluster, are
// foreign: nothing touches them.
func (i *Instance) Data() ag.DataState {
	if tree.HalfSeeded(i.data(), i.Layout.State()) || i.Instance.Interrupted() {
		if why := i.Instance.MountLost(); why != "" && i.empty() { // what was begun is on the other file system
			return i.isForeign(why)
		}
		return ag.DataPartial
	}
	id, err := i.Instance.SystemID()
	switch {
	case err == nil && i.GroupSystemID != nil && i.GroupSystemID() != "" && id != i.GroupSystemID():
		return i.isForeign(fmt.Sprintf("it holds a cluster with the system identifier %s; the group's is %s", id, i.GroupSystemID()))
	case err == nil:
		i.foreign.Store(nil)
		return ag.DataPresent
	case !errors.Is(err, fs.ErrNotExist):
		return i.isForeign(err.Error())
	}
	if why := i.Instance.MountLost(); why != "" {
		return i.isForeign(why)
	}
	if i.empty() {
		return ag.DataEmpty
	}
	return i.isForeign("there are files in it, and no database cluster")
}

// empty reports whether the data directory is missing or empty.
func (i *Instance) empty() bool {
	entries, err := os.ReadDir(i.data())
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}

// isForeign says once why nothing touches the data directory: it is not this node's to change.
func (i *Instance) isForeign(why string) ag.DataState {
	if old := i.foreign.Swap(&why); i.Log != nil && (old == nil || *old != why) {
		i.Log.Error("the data directory is left alone", "dir", i.data(), "because", why)
	}
	return ag.DataForeign
}

// InsideCopy returns the copy id that lies in the data directory.
func (i *Instance) InsideCopy() (ag.CopyID, error) {
	b, err := os.ReadFile(filepath.Join(i.data(), CopyFile))
	return ag.CopyID(strings.TrimSpace(string(b))), err
}

// WriteCopy puts a copy id into the data directory, durably.
func (i *Instance) WriteCopy(id ag.CopyID) error {
	if err := durable.Replace(filepath.Join(i.data(), CopyFile), []byte(string(id)+"\n"), 0o600); err != nil {
		return err
	}
	return i.Instance.RememberMount()
}

// Observe asks the server for its state. A server that does not answer is an error.
func (i *Instance) Observe(ctx context.Context) (agent.Observation, error) {
	o, err := i.Instance.Observe(ctx)
	if err != nil {
		return agent.Observation{}, err
	}
	if i.Seen != nil {
		i.Seen.note(o)
	}
	return i.observation(o), nil
}

// observation returns the server's state in the terms of the group: members instead of the names of their streams.
func (i *Instance) observation(o postgres.Observation) agent.Observation {
	out := agent.Observation{
		InRecovery: o.InRecovery, Position: o.Whole, Flushed: ag.Position{Timeline: o.Timeline, LSN: o.Flush}, Replay: o.Replay,
		Receiving: o.WalReceiver != nil, Streamed: o.Receive != 0, Short: o.Short, Paused: o.ReplayPaused, Waiters: o.SyncRepWaiters,
	}
	out.Doubled = i.notOurs(o.Replication)
	if o.WalReceiver != nil && o.WalReceiver.ReceivedTLI > out.Flushed.Timeline {
		out.Flushed.Timeline = o.WalReceiver.ReceivedTLI
	}
	if !o.InRecovery {
		out.Written = writtenSync(o)
	}
	s, err := settings.ParseSync(o.SyncNames)
	if err != nil {
		out.N = -1 // not ours
		return out
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
	return out
}

// writtenSync returns the setting that the server's next reload puts in force.
func writtenSync(o postgres.Observation) *ag.Sync {
	s, err := settings.ParseSync(o.SyncWritten)
	if err != nil || !o.IsWritten {
		return &ag.Sync{N: -1}
	}
	w := ag.Sync{N: s.Num}
	for _, name := range s.Names {
		m, _, ok := settings.ParseApplication(name)
		if !ok {
			return &ag.Sync{N: -1}
		}
		w.P = append(w.P, m)
	}
	return &w
}

// Strays returns the members in whose names walsenders run that this node's agent did not open, or more than one.
func (i *Instance) Strays(ctx context.Context) ([]ag.ReplicaID, error) {
	senders, err := i.Instance.Walsenders(ctx)
	return i.notOurs(senders), err
}

// notOurs returns the members for which PostgreSQL counts acknowledgements that they may not have given.
func (i *Instance) notOurs(senders []postgres.Walsender) []ag.ReplicaID {
	out := append(doubled(senders), strays(senders, i.Owns)...)
	slices.Sort(out)
	return slices.Compact(out)
}

// strays finds the members in whose names walsenders run that owns does not know. One in state startup acknowledges
// nothing yet, and its process may not be known yet.
func strays(senders []postgres.Walsender, owns func(pid int) bool) (out []ag.ReplicaID) {
	for _, w := range senders {
		if m, _, ok := settings.ParseApplication(w.Application); ok && w.State != "startup" && owns != nil && !owns(w.PID) {
			out = append(out, m)
		}
	}
	return out
}

// doubled finds the members for which more than one walsender of a name runs: PostgreSQL counts each of them.
func doubled(senders []postgres.Walsender) (out []ag.ReplicaID) {
	type name struct {
		member ag.ReplicaID
		epoch  ag.Epoch
	}
	seen := map[name]int{}
	for _, w := range senders {
		if m, e, ok := settings.ParseApplication(w.Application); ok {
			name := name{m, e}
			if seen[name]++; seen[name] == 2 {
				out = append(out, m)
			}
		}
	}
	return out
}

// EndWalsenders ends the walsenders of a member.
func (i *Instance) EndWalsenders(ctx context.Context, member ag.ReplicaID) error {
	return i.Instance.EndWalsenders(ctx, string(member))
}

// Promote promotes the server to a timeline, and returns where that begins.
func (i *Instance) Promote(ctx context.Context, tli ag.Timeline) (ag.LSN, ag.Xids, error) {
	return i.Instance.Promote(ctx, tli, 5*time.Minute)
}

// SetSync makes commits wait for n of the members p, under their names of epoch e.
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

// EndConflicts lets replay cancel the queries that hold it up.
func (i *Instance) EndConflicts(ctx context.Context) error { return i.Instance.PauseConflicts(ctx) }

// RestoreConflicts undoes EndConflicts.
func (i *Instance) RestoreConflicts(ctx context.Context) error {
	return i.Instance.RestoreConflicts(ctx)
}

// Rewind makes a diverged copy a prefix of the history that it will follow. note receives its progress.
func (i *Instance) Rewind(ctx context.Context, note func(string)) error { return i.rewind(ctx, note) }

// ProbeCommit begins a commit and returns the channel of its outcome, and a function that reports whether it waits for
// a standby.
func (i *Instance) ProbeCommit(ctx context.Context) (<-chan error, func(context.Context) bool, error) {
	done, pid, err := i.Instance.ProbeCommit(ctx)
	return done, func(ctx context.Context) bool { return i.Instance.WaitingInSyncRep(ctx, pid) }, err
}

// EnsureSlots makes one replication slot for each of these members, no further than the given positions, and drops all
// others of the group.
func (i *Instance) EnsureSlots(ctx context.Context, at map[ag.ReplicaID]ag.LSN) error {
	var want []string
	lsn := map[string]ag.LSN{}
	for id, l := range at {
		want = append(want, settings.SlotName(id))
		lsn[settings.SlotName(id)] = l
	}
	return i.Instance.EnsureSlots(ctx, want, lsn)
}

// KeepFork copies the WAL from a position on into a directory below forked/, and returns its path.
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
