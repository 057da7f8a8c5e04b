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

// Options are the source, the target and the speed of a copy.
type Options struct {
	// Dial opens a connection to the source's agent. It is called often: a seeding uses several connections, and
	// replaces those that are cut.
	Dial func(context.Context) (net.Conn, error)
	// Anchor opens a connection to the primary's agent when the source is a secondary. The primary keeps the WAL that
	// the copy will need when it streams from the primary. Nil: the source is the primary.
	Anchor func(context.Context) (net.Conn, error)
	Member ag.ReplicaID // this node
	Epoch  ag.Epoch     // in which the source is the primary
	// Target is the data directory: missing, empty, or an older copy of the same cluster. Equal parts of an older copy
	// stay. Files of that copy that must survive (S5) must have been saved before. Target may be a mount point.
	Target string
	// StateDir is a directory outside Target where the mark of a seeding under way is kept.
	StateDir string
	// Major is the version of the programs that are to run on the copy. A source of another version is refused before
	// anything is touched. 0: any.
	Major int
	// TablespaceMap returns the place of a source's tablespace on this node: an absolute path outside Target. Nil
	// refuses a source that has tablespaces.
	TablespaceMap func(oid uint32, location string) (string, error)
	// NodeFiles returns files of this node, by path relative to Target, that must be in the copy from the moment it can
	// be started. They replace the source's files of the same name. Nil: none.
	NodeFiles func(ag.CopyID) map[string][]byte
	// From is a directory with another copy of the same cluster, such as a restored backup or a snapshot. Parts that
	// the target lacks are taken from there, instead of over the network, where they equal the source's. It is only
	// read. "": none.
	From        string
	Compression string                  // SEED_COMPRESSION; "" is AUTO
	MaxRate     func() int64            // bytes of the source's files per second, called repeatedly; nil or 0: unlimited
	Streams     int                     // data connections; 0: by the size of the copy, at most 4
	Spread      bool                    // do not request a burst of writes from the source (an immediate checkpoint)
	Corrupt     bool                    // accept pages whose checksum is wrong at the source, unchanged
	Progress    func(progress.Progress) // called a few times a second and at each new phase, from one goroutine at a time; may be nil
}

// Result describes a finished copy.
type Result struct {
	SystemID string            // the source's system identifier
	Timeline ag.Timeline       // of the backup
	Start    ag.LSN            // where replay begins
	End      ag.LSN            // where the copy becomes consistent
	Copy     ag.CopyID         // new for this copy
	Progress progress.Progress // at the end
}

// Run fills o.Target and returns once the copy is complete, verified and durable. A connection that is cut is opened
// again, for as long as ctx lasts, and data that arrived is not sent again; Run gives up when the source refuses. When
// it returns an error, it leaves a directory that no server can be started from or, if nothing was touched yet, the old
// copy. The next Run, from the same source or another, compares that directory's contents and fetches the difference.
func Run(ctx context.Context, o Options) (Result, error) {
	r, err := run(ctx, o)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause // closed connections are only its symptom
	}
	if err != nil {
		return Result{}, fmt.Errorf("seed %s: %w", o.Target, err)
	}
	return r, nil
}

// maxRounds bounds the number of backup windows that one Run takes because databases are created or dropped.
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
		switch {
		case err != nil && !windowIsGone(err):
			return Result{}, s.doubt(err)
		case err == nil && end.Again == "":
			r, err := s.install(ctx, end)
			return r, s.doubt(err)
		case round >= maxRounds:
			return Result{}, fmt.Errorf("%d backup windows were not enough: %s", round, whyAgain(end, err))
		}
		s.watch.Again(whyAgain(end, err))
	}
}

// windowIsGone reports whether another window makes good what has failed.
func windowIsGone(err error) bool {
	var r *wire.RefusedError
	return errors.As(err, &r) && r.Code == wire.CodeGone && !errors.Is(err, tree.ErrUnwritten)
}

// doubt notes a failure of the disk for the next attempt, which must not take for written what is in the page cache. It
// returns err.
func (s *seeder) doubt(err error) error {
	if errors.Is(err, tree.ErrUnwritten) {
		return errors.Join(err, tree.MarkUnwritten(s.o.StateDir))
	}
	return err
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
	s.reportInstalled()
	s.watch.Enter(progress.PhaseDone)
	r.Progress = s.watch.Snapshot()
	return r, nil
}
