package majors

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/postgres/pgupgrade"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
)

// Resume goes on with an upgrade that this node has begun. It is called while the quorum's member runs and no server
// does, and before anything of the data directory is read. When it returns nil, the node's configuration says which
// cluster is to be started.
func (s *Service) Resume(ctx context.Context) error {
	if err := s.job(major.Upgrade{}).Clear(ctx); err != nil { // of a look that died with its agent
		s.Logger.Warn("what an interrupted look at a major upgrade has left is still there", "err", err)
	}
	u, err := Read(s.Layout)
	if err != nil {
		return err
	}
	if u.Phase == "" || u.Phase == major.Done || u.Phase == major.GivenUp {
		s.forget()
		s.sweep(u)
		return nil
	}
	s.Logger.Info("a major upgrade goes on", "phase", u.Phase, "from", u.From.Version, "to", u.To.Version)
	if err := endKeeper(ctx, s.Layout); err != nil {
		return err
	}
	if u.Phase == major.Asked {
		if err := s.job(u).End(ctx); err != nil { // else the old cluster would not be found as its server left it
			return err
		}
	}
	u, err = major.Run(ctx, s, u)
	if err != nil {
		return fmt.Errorf("major upgrade: %w", err)
	}
	s.forget()
	s.Logger.Info("the major upgrade is over for now", "phase", u.Phase, "why", u.Why)
	return nil
}

// Save implements major.Node.
func (s *Service) Save(u major.Upgrade) error { return save(s.Layout, u) }

// The pauses between two looks at a quorum that does not answer, and between two lines about that in the log.
const (
	lookAgain = 500 * time.Millisecond
	sayAgain  = 10 * time.Second
)

// Facts implements major.Node.
func (s *Service) Facts(ctx context.Context, u major.Upgrade) (f major.Facts, err error) {
	seen, err := marks.Open(s.Layout.State()).Seen()
	if err != nil {
		return f, err
	}
	said := time.Time{}
	for {
		s.last, err = s.Store.Read(ctx)
		now := marks.Seen{Epoch: s.last.Record.Epoch.Epoch, Seq: s.last.Record.State.Seq}
		if err == nil && now.OlderThan(seen) {
			return f, fmt.Errorf("the record has gone back to epoch %d, and this node has seen epoch %d", now.Epoch, seen.Epoch)
		}
		if err == nil {
			break
		}
		if time.Since(said) > sayAgain {
			said = time.Now()
			s.Logger.Warn("the major upgrade waits for the quorum", "err", err)
		}
		if err := retry.Sleep(ctx, lookAgain); err != nil {
			return f, err
		}
	}
	f = major.Facts{Group: s.last.Group, Record: s.last.Record, Now: time.Now(), Stopped: stopped(s.Layout)}
	if err := fixed(s.Layout.Dir); err != nil {
		f.Fixed = err.Error()
	}
	f.Clean, err = s.clean(ctx, u)
	return f, err
}

// clean reports whether the old cluster's server ended in order, as a primary.
func (s *Service) clean(ctx context.Context, u major.Upgrade) (bool, error) {
	if u.Phase == major.Made && u.Filled() {
		return s.unchanged(ctx, u)
	}
	if u.Phase != major.Asked {
		return true, nil
	}
	pg, err := s.instance(u.From)
	if err != nil {
		return false, err
	}
	defer func() { _ = pg.Close() }()
	ctl, err := pg.Control(ctx)
	if err != nil { // an interruption may have left the file under its other name: Make gives it back
		s.Logger.Warn("the state of the old cluster is not known yet", "err", err)
		return true, nil
	}
	return ctl.State == "shut down", nil
}

// errStopped ends pg_upgrade.
var errStopped = errors.New("an administrator has given it up")

// Make implements major.Node.
func (s *Service) Make(ctx context.Context, u major.Upgrade) (major.Upgrade, error) {
	fault.Point("major.begun") // the server has ended; nothing of the new cluster is there
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() { // ends with ctx
		retry.Every(ctx, lookAgain, func() {
			if stopped(s.Layout) {
				end(errStopped)
			}
		})
	}()
	if err := s.job(u).Make(ctx); err != nil {
		return u, err
	}
	fault.Point("major.upgraded") // the new cluster is complete; the node does not know its identity
	from, err := s.instance(u.From)
	if err != nil {
		return u, err
	}
	defer func() { _ = from.Close() }()
	if u.Mode == major.Copy { // else its pg_control is not called so
		if u.From.End, err = from.EndOfWAL(ctx); err != nil {
			return u, err
		}
	}
	to, err := s.instance(u.To)
	if err != nil {
		return u, err
	}
	defer func() { _ = to.Close() }()
	u.To.Copy = agent.NewCopyID()
	if u.To.SystemID, err = to.SystemID(); err != nil {
		return u, err
	}
	if u.To.End, err = to.EndOfWAL(ctx); err != nil {
		return u, err
	}
	u.To.Timelines = []ag.TimelineEntry{{TLI: u.To.End.Timeline}}
	return u, durable.Replace(filepath.Join(u.To.Data, pgserver.CopyFile), []byte(string(u.To.Copy)+"\n"), 0o600)
}

// Pass implements major.Node.
func (s *Service) Pass(ctx context.Context, _ major.Facts, p major.Passage) error {
	fault.Point("major.made") // the node knows the new cluster; the group does not
	if err := s.Store.Pass(ctx, s.last, p.Group, p.Epoch, p.State); err != nil {
		s.Logger.Warn("the group did not pass to the other cluster", "err", err)
		return err
	}
	fault.Point("major.passed") // the group has the new cluster; nothing on this node says so
	return nil
}

// Void implements major.Node.
func (s *Service) Void(ctx context.Context, u major.Upgrade) error {
	for {
		err := s.Update(ctx, func(g *ag.Group) error { u.EndMaintenance(g); return nil })
		if err == nil {
			return nil
		}
		s.Logger.Warn("the major upgrade waits for the quorum", "err", err)
		if slept := retry.Sleep(ctx, lookAgain); slept != nil {
			return errors.Join(err, slept)
		}
	}
}

// Adopt implements major.Node.
func (s *Service) Adopt(u major.Upgrade) error {
	own := marks.Open(s.Layout.State())
	if err := own.SetCopy(marks.Copy{Copy: u.From.Copy, Next: u.To.Copy}); err != nil {
		return err
	}
	fault.Point("major.marked") // both copies are known to this node; its configuration file names the old cluster
	if err := s.use(u.To.BinDir, u.To.Data); err != nil {
		return err
	}
	fault.Point("major.named") // the configuration file names the new cluster; the mark of the copy names the old one
	s.Members.Update(s.last.Group)
	if err := s.job(u).Keep(); err != nil {
		return err
	}
	pg, err := s.instance(u.To)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	return errors.Join(pg.RememberMount(), own.SetCopy(marks.Copy{Copy: u.To.Copy}))
}

// use has the configuration file, and this process, name another cluster.
func (s *Service) use(binDir, data string) error {
	if err := name(s.Layout.Dir, s.Node, binDir, data); err != nil {
		return err
	}
	s.Node.PostgreSQL.BinDir, s.Node.PostgreSQL.Data = binDir, data
	return nil
}

// Remove implements major.Node. A directory that cannot be removed keeps no node from starting: Left tells of it, and
// the next start tries again.
func (s *Service) Remove(u major.Upgrade) error {
	err := s.job(u).Undo(context.Background()) // it has waits of its own
	if errors.Is(err, pgupgrade.ErrLeft) {
		s.Logger.Warn("the old cluster is given back, and something of the new one is left", "err", err)
		return nil
	}
	return err
}

// sweep tries again to remove what an upgrade that was given up has left.
func (s *Service) sweep(u major.Upgrade) {
	if Left(s.Layout, u) == "" || s.Node.PostgreSQL.Data == u.To.Data {
		return
	}
	if err := s.job(u).Sweep(); err != nil {
		s.Logger.Warn("what a major upgrade that was given up has left is still there", "err", err)
	}
}

// Left returns the directory of the new cluster that is left of an upgrade which was given up; "": none is.
func Left(l config.Layout, u major.Upgrade) string {
	if u.Phase != major.GivenUp || u.Back || u.To.Data == "" {
		return ""
	}
	for _, dir := range []string{u.To.Data, u.To.WAL} {
		if owned, err := (pgupgrade.Job{Made: madeFile(l)}).Owns(dir); dir != "" && owned && err == nil {
			return dir
		}
	}
	return ""
}

// madeFile names the directories that upgrades of this node have made.
func madeFile(l config.Layout) string { return filepath.Join(l.State(), "major-made.json") }

// Drop implements major.Node. The files stay: those that the new cluster has as well are compared, and not fetched.
func (s *Service) Drop(ctx context.Context, u major.Upgrade) error {
	if pids := (pgupgrade.Job{Old: side(u.From)}).Running(); len(pids) > 0 {
		return fmt.Errorf("a server still runs in %s (processes %v)", u.From.Data, pids)
	}
	if u.From.SystemID != "" { // else there was no copy, or one of the new cluster
		if err := s.disable(u.From.Data); err != nil {
			return err
		}
	}
	fault.Point("major.dropped") // the old copy cannot be started; the configuration file names the old programs
	if err := s.use(u.To.BinDir, u.From.Data); err != nil {
		return err
	}
	s.Members.Update(s.last.Group)
	return s.Update(ctx, func(g *ag.Group) error {
		for i := range g.Replicas {
			if g.Replicas[i].ID == s.Self {
				g.Replicas[i].Major = u.To.Major
			}
		}
		return nil
	})
}

// disable makes the copy in a directory unusable. Where there is none, as after somebody has removed it, nothing is to
// be done.
func (s *Service) disable(data string) error {
	entries, err := os.ReadDir(data)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	real, err := filepath.EvalSymlinks(data)
	if err != nil {
		return err
	}
	if err := tree.WriteUnfinished(s.Layout.State(), tree.Unfinished{Target: real, Started: time.Now().UTC()}); err != nil {
		return err
	}
	fault.Point("major.unfinished") // the mark of a copy to be made is on disk; the old copy is whole
	for _, name := range []string{datadir.ControlFile, "PG_VERSION"} {
		if err := durable.Remove(filepath.Join(real, name)); err != nil && !errors.Is(err, fs.ErrNotExist) { // not even its directory
			return err
		}
	}
	return nil
}
