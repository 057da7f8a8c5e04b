package seeding

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/google/uuid"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// Options says from where, into what and how fast a copy is made.
type Options struct {
	// Dial opens a connection to the source's agent. It is called often: a seeding uses several, and replaces those that are cut.
	Dial func(context.Context) (net.Conn, error)
	// Anchor opens a connection to the primary's agent when the source is a secondary: the primary keeps the WAL that the copy
	// will need when it streams from it. Nil: the source is the primary.
	Anchor func(context.Context) (net.Conn, error)
	Member ag.ReplicaID // this node
	Epoch  ag.Epoch     // in which the source is the primary
	// Target is the data directory: missing, empty, or an older copy of the same cluster, of which what is equal stays. What of
	// that copy has to be kept (S5) must have been kept before. It may be a mount point.
	Target string
	// StateDir is a directory outside Target where the mark of a seeding under way is kept.
	StateDir string
	// TablespaceMap says where a tablespace of the source goes on this node: an absolute path outside Target.
	// Nil refuses a source that has tablespaces.
	TablespaceMap func(oid uint32, location string) (string, error)
	// NodeFiles returns files of this node, by path relative to Target, that must be in the copy from the moment it can be
	// started. They replace the source's files of the same name. Nil: none.
	NodeFiles func(ag.CopyID) map[string][]byte
	// From is a directory with another copy of the same cluster, as a restored backup or a snapshot is: what the target lacks is
	// taken from there where it equals the source's, instead of from the wire. It is only read. "": none.
	From        string
	Compression string                  // SEED_COMPRESSION; "" is AUTO
	MaxRate     func() int64            // bytes of the source's files per second, asked again and again; nil or 0: unlimited
	Streams     int                     // data connections; 0: by the size of the copy, at most 4
	Spread      bool                    // do not ask the source for a burst of writes (an immediate checkpoint)
	Corrupt     bool                    // take pages whose checksum is wrong at the source as they are
	Progress    func(progress.Progress) // called a few times a second and at each new phase, from one goroutine at a time; nil: nobody watches
}

// Result describes a finished copy.
type Result struct {
	SystemID string            // the source's system identifier
	Timeline ag.Timeline       // of the backup
	Start    ag.LSN            // where replay begins
	End      ag.LSN            // where the copy becomes consistent
	Copy     ag.CopyID         // made anew for this copy
	Progress progress.Progress // at the end
}

// Run fills o.Target and returns once the copy is complete, verified and durable. A connection that is cut is opened again, for
// as long as ctx lasts, and nothing that arrived is sent again; Run gives up when the source refuses. Whatever it returns an
// error for leaves a directory that no server can be started from (or, if nothing was touched yet, the old copy), and the next
// Run, from the same source or another, compares what is there and fetches the difference.
func Run(ctx context.Context, o Options) (Result, error) {
	r, err := run(ctx, o)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // closed connections are only how it showed
	}
	if err != nil {
		return Result{}, fmt.Errorf("seed %s: %w", o.Target, err)
	}
	return r, nil
}

// maxRounds bounds how many backup windows one Run takes because databases come and go.
const maxRounds = 5

func run(ctx context.Context, o Options) (Result, error) {
	target, err := tree.CheckPlaces(o.Target, o.StateDir)
	if err != nil {
		return Result{}, err
	}
	o.Target = target
	pace := &progress.Pacer{Rate: o.MaxRate}
	choose, err := newChooser(o.Compression, pace.Limit)
	if err != nil {
		return Result{}, err
	}
	if err := checkFrom(o.From, target); err != nil {
		return Result{}, err
	}
	s := &seeder{o: o, watch: progress.NewWatcher(o.Progress, choose.shown), choose: choose, pace: pace}
	defer s.close()
	if m, err := tree.ReadUnfinished(o.StateDir); err == nil && m.Target == target {
		choose.resume(m.Codec)
	}
	stopWatch := s.watch.Run()
	defer stopWatch()
	s.watch.Enter(progress.PhaseCheckpoint)
	for round := 1; ; round++ {
		end, err := s.round(ctx)
		var r *wire.RefusedError
		switch {
		case err != nil && !(errors.As(err, &r) && r.Code == wire.CodeGone):
			return Result{}, err
		case err == nil && end.Again == "":
			return s.install(ctx, end)
		case round >= maxRounds:
			return Result{}, fmt.Errorf("%d backup windows were not enough: %s", round, whyAgain(end, err))
		}
		s.watch.Again(whyAgain(end, err))
	}
}

func whyAgain(e wire.Ending, err error) string {
	if err != nil {
		return err.Error()
	}
	return e.Again
}

// install makes the copy startable.
func (s *seeder) install(ctx context.Context, end wire.Ending) (Result, error) {
	r := Result{SystemID: s.info.SystemID, Timeline: s.info.Timeline, Start: s.info.Start, End: end.End, Copy: ag.CopyID(uuid.NewString())}
	if err := datadir.CheckControl(end.Control, r.SystemID); err != nil {
		return Result{}, err
	}
	var files map[string][]byte
	if s.o.NodeFiles != nil {
		files = s.o.NodeFiles(r.Copy)
	}
	if err := s.tree.WriteNodeFiles(end.Label, files); err != nil {
		return Result{}, fmt.Errorf("write this node's files: %w", err)
	}
	s.watch.Enter(progress.PhaseSync)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := s.tree.Install(end.Control); err != nil {
		return Result{}, fmt.Errorf("install: %w", err)
	}
	if err := tree.RemoveUnfinished(s.o.StateDir); err != nil {
		return Result{}, err
	}
	s.farewell()
	s.watch.Enter(progress.PhaseDone)
	r.Progress = s.watch.Snapshot()
	return r, nil
}
