package seeding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// seeder is one Run.
type seeder struct {
	o      Options
	watch  *progress.Watcher
	choose *chooser
	pace   *progress.Pacer

	info  wire.Window  // of the window under way
	hash  pagesum.Hash // of its pages
	files []wire.File
	tree  *tree.Tree
	from  *starting // where else to look; may be nil
	fresh bool      // no older copy existed
	had   []int64   // the length of each file here when the window began
	queue *queue

	mu   sync.Mutex
	cut  map[int]int64 // files that are shorter at the source than in its list
	gone map[int]bool  // files that no longer exist at the source

	ctl    *control
	anchor *control // to the primary, if the source is a secondary; else nil
}

func (s *seeder) close() {
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			c.close()
		}
	}
	if s.tree != nil {
		s.tree.Close()
	}
	if s.from != nil {
		s.from.close()
	}
}

// round fills the target within one backup window: everything is compared or received, then the window is ended. Later
// work lies between the last byte and the end of the copy, so as much as possible is done before or beside it.
func (s *seeder) round(ctx context.Context) (wire.Ending, error) {
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			c.close()
		}
	}
	if err := s.attach(ctx); err != nil {
		return wire.Ending{}, err
	}
	ahead := s.dialAhead(ctx, s.streams())
	defer ahead.close()
	if err := s.prepare(); err != nil {
		return wire.Ending{}, err
	}
	// Data of other processes that these disks have not written yet is written while the copy travels: the end has to
	// wait for it as well.
	early := beside(s.tree.Sync)
	if err := errors.Join(s.transfer(ctx, ahead), <-early); err != nil {
		return wire.Ending{}, err
	}
	s.watch.Enter(progress.PhaseFinish)
	// Nearly everything is written, so install has little to wait for. Another window, if one is needed, begins with
	// these lengths.
	settled := beside(func() error { return errors.Join(s.finish(), s.tree.Sync()) })
	e, err := s.end(ctx)
	return e, errors.Join(err, <-settled)
}

// beside runs f in a goroutine. The caller must receive its result.
func beside(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// finish gives the files their lengths.
func (s *seeder) finish() error {
	if err := s.tree.Finish(s.files, !s.fresh, s.cut, s.gone); err != nil {
		return fmt.Errorf("give the files their lengths: %w", err)
	}
	return nil
}

// end ends the backup.
func (s *seeder) end(ctx context.Context) (wire.Ending, error) {
	e, err := s.ctl.ending(ctx)
	if err != nil {
		return wire.Ending{}, fmt.Errorf("end the backup: %w", err)
	}
	if e.End < s.info.Start || len(e.Label) == 0 {
		return wire.Ending{}, fmt.Errorf("the backup ended at %s, before its start %s, or without a label", e.End, s.info.Start)
	}
	if s.anchor != nil && e.Again == "" { // a secondary does not know of an uncommitted creation
		kept, err := s.anchor.ending(ctx)
		if err != nil {
			return wire.Ending{}, fmt.Errorf("ask the primary what databases there are: %w", err)
		}
		e.Again = kept.Again
	}
	return e, nil
}

// prepare gives the target the shape of the list.
func (s *seeder) prepare() error {
	s.watch.Enter(progress.PhasePrepare)
	if err := datadir.CheckList(s.files); err != nil {
		return err
	}
	if s.info.Page < 1024 || s.info.Page > 32<<10 || s.info.Page&(s.info.Page-1) != 0 {
		return fmt.Errorf("the source has pages of %d bytes", s.info.Page)
	}
	if s.o.Major != 0 && s.info.Major != s.o.Major {
		return fmt.Errorf("the source runs PostgreSQL %d, and the programs here (bin_dir in coterie.yaml) are of PostgreSQL %d, which could not start the copy: %w", s.info.Major, s.o.Major, ErrVersion)
	}
	if err := tree.CheckOldCopy(s.o.Target, s.info.SystemID, s.info.Major); err != nil {
		return err
	}
	if err := tree.CheckLinks(s.o.Target, s.info); err != nil {
		return err
	}
	if s.anchor != nil {
		if err := tree.CheckLinks(s.o.Target, s.anchor.info); err != nil {
			return err
		}
	}
	places, err := tree.MapTablespaces(s.o.Target, s.o.TablespaceMap, s.info.Spaces)
	if err != nil {
		return err
	}
	if s.o.From != "" && s.from == nil {
		if s.from, err = openStarting(s.o.From, s.info); err != nil {
			return err
		}
	}
	if s.fresh, err = tree.Prepare(s.o.Target, s.o.StateDir, places, s.info.Major); err != nil {
		return err
	}
	if s.tree != nil {
		s.tree.Close()
	}
	if s.tree, err = tree.Open(s.o.Target, places, s.info.Major); err != nil {
		return err
	}
	if s.had, err = s.tree.Shape(s.files, !s.fresh); err != nil {
		return fmt.Errorf("make the directories: %w", err)
	}
	total := int64(0)
	for _, f := range s.files {
		total += f.Size
	}
	if err := s.tree.CheckRoom(s.files, s.had); err != nil {
		return err
	}
	if err := s.tree.Reserve(s.files, s.had); err != nil {
		return err
	}
	empty := slices.DeleteFunc(slices.Clone(s.files), func(f wire.File) bool { return f.Size > 0 }) // they need no transfer, so they need not wait for the end
	if err := s.tree.Finish(empty, !s.fresh, nil, nil); err != nil {
		return fmt.Errorf("make the empty files: %w", err)
	}
	s.cut, s.gone = map[int]int64{}, map[int]bool{}
	s.queue = newQueue(s.files, func(f wire.File) bool { return s.tree.Stays(f.Space, f.Name, !s.fresh) })
	s.watch.Start(total, len(s.files))
	return nil
}

// transfer settles chunks over the data connections until nothing remains to be asked.
func (s *seeder) transfer(ctx context.Context, ahead *lines) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range cap(ahead.open) {
		all.Go(func() {
			open := ahead.take // the first time
			err := s.retryLost(ctx, func() error {
				l := open(ctx)
				open = s.line
				if l.err != nil {
					return l.err
				}
				return s.stream(ctx, l)
			})
			if err != nil {
				cancel(err)
			}
		})
	}
	var alive sync.WaitGroup
	quit := make(chan struct{})
	for _, c := range []*control{s.ctl, s.anchor} {
		if c != nil {
			alive.Go(func() {
				if err := c.keepAlive(ctx, quit); err != nil {
					cancel(err)
				}
			})
		}
	}
	all.Wait()
	close(quit)
	alive.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return nil
}

// streams returns the number of data connections that are worthwhile.
func (s *seeder) streams() int {
	if s.o.Streams > 0 {
		return min(s.o.Streams, wire.MaxStreams)
	}
	const each = 32 << 20
	total := int64(0)
	for _, f := range s.files {
		total += f.Size
	}
	return int(min(4, 1+total/each))
}
