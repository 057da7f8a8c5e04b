package majors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/durable"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/node/pgserver"
	"github.com/coteriedb/coterie/internal/node/rpc"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// The bounds of how long automatic failover may be off for an upgrade.
const (
	withinDefault = 2 * time.Hour
	withinLeast   = 5 * time.Minute
	withinMost    = 7 * 24 * time.Hour
)

func (l *look) within() time.Duration {
	if l.req.Within == 0 {
		return withinDefault
	}
	return l.req.Within
}

// Do carries a request about a major upgrade out.
func (s *Service) Do(ctx context.Context, req api.MajorRequest) (api.MajorPlan, error) {
	if req.Within != 0 && (req.Within < withinLeast || req.Within > withinMost) {
		return api.MajorPlan{}, fail.Usagef("--within %v: choose between %v and %v", req.Within, withinLeast, withinMost)
	}
	if r := req.Return; r != nil && (*r < 0 || *r > returnMost) {
		return api.MajorPlan{}, fail.Usagef("--return-within %v: choose up to %v", *r, returnMost)
	}
	if req.Act == api.MajorLook { // it removes nothing itself
		s.awaitSwept(ctx)
	}
	if !s.asked.TryLock() {
		return api.MajorPlan{}, fail.Refusedf("another request about a major upgrade is being carried out on %s; wait for its end", s.Self)
	}
	defer s.asked.Unlock()
	switch req.Act {
	case api.MajorLook, api.MajorBegin:
		return s.Begin(ctx, req)
	case api.MajorFollow:
		return api.MajorPlan{Node: s.Self, Begun: true}, s.follow(ctx, req)
	case api.MajorBack:
		return api.MajorPlan{Node: s.Self, Begun: true}, s.back(ctx, req)
	case api.MajorEnd:
		return api.MajorPlan{Node: s.Self, Begun: true}, s.endReturn()
	}
	return api.MajorPlan{}, fail.Usagef("%q is nothing that is done about a major upgrade", req.Act)
}

// Begin looks whether the upgrade can be made, and begins it if that was asked for and nothing stands in its way. The
// agent ends after the answer, and the next one takes the steps.
func (s *Service) Begin(ctx context.Context, req api.MajorRequest) (api.MajorPlan, error) {
	if req.Act == api.MajorBegin {
		if err := s.sweepNow(ctx); err != nil { // the slots of an upgrade that was given up would stand in the way
			s.Logger.Debug("what an upgrade has left is still there", "err", err)
		}
	}
	l, err := s.examine(ctx, req)
	if err != nil || req.Act == api.MajorLook || len(l.plan.Obstacles) > 0 {
		if l == nil {
			return api.MajorPlan{}, err
		}
		return l.plan, err
	}
	if v, err := s.leads(); err != nil || v.Record.Epoch.Epoch != l.u.Epoch {
		return l.plan, errors.Join(err, fail.Refusedf("the leadership has changed while the upgrade was looked at; nothing was changed"))
	}
	l.u.Asked, l.u.Until = time.Now().UTC(), l.plan.Until.UTC()
	l.plan.Begun = true
	if l.u.Mode == major.Green {
		return l.plan, s.fill(l.u)
	}
	return l.plan, s.launch(ctx, l.u)
}

// launch puts the group under maintenance, stores the upgrade, and has the agent make room for it.
func (s *Service) launch(ctx context.Context, u major.Upgrade) error {
	if err := s.checkpoint(ctx); err != nil {
		return err
	}
	if err := s.announce(ctx, u); err != nil {
		return err
	}
	fault.Point("major.asked") // the upgrade is stored; the server still runs
	s.Restart()
	return nil
}

// announce puts the group under maintenance and stores the upgrade. If it cannot be stored, the maintenance ends.
func (s *Service) announce(ctx context.Context, u major.Upgrade) error {
	err := s.Update(ctx, func(g *ag.Group) error {
		if u.Maintenance = g.Maintenance == nil || g.Maintenance.Reason == u.Reason(); u.Maintenance {
			g.Maintenance = &ag.Maintenance{Until: u.Until, Reason: u.Reason()}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put the group under maintenance: %w; nothing was changed", err)
	}
	fault.Point("major.announced") // the group is under maintenance; the node does not know of an upgrade
	if err := s.start(u); err != nil {
		return errors.Join(err, s.Update(ctx, func(g *ag.Group) error { u.EndMaintenance(g); return nil }))
	}
	return nil
}

// start stores the state with which the next agent begins.
func (s *Service) start(u major.Upgrade) error {
	if err := fixed(s.Layout.Dir); err != nil {
		return fail.Refusedf("%w; nothing was changed", err)
	}
	if err := os.Remove(s.Layout.MajorStop()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return save(s.Layout, u)
}

// checkpoint writes what the shutdown would have to write while clients wait.
func (s *Service) checkpoint(ctx context.Context) error {
	conn, err := s.Server.SessionIn(ctx, "")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("write a checkpoint before the upgrade: %w; nothing was changed", err)
	}
	return nil
}

// back begins the way back to the cluster that the group has left.
func (s *Service) back(ctx context.Context, req api.MajorRequest) error {
	v, err := s.leads()
	if err != nil {
		return err
	}
	was, err := Read(s.Layout)
	if err != nil {
		return err
	}
	within := req.Within
	if within == 0 {
		within = withinDefault
	}
	if open := was.Return != nil && was.Return.Open; open && !req.AllowDataLoss {
		return s.wish(was, false)
	} else if open {
		return fail.Refusedf("a way back that loses nothing is open; leave --allow-data-loss away, or end it first: coterie upgrade major --finish")
	}
	now := time.Now().UTC().Truncate(time.Second)
	u, err := was.Reverse(v.Record.Epoch.Epoch, now, now.Add(within))
	switch {
	case err != nil:
		return fail.Refusedf("there is no way back: %w", err)
	case v.Record.State.Copy != u.From.Copy:
		return fail.Refusedf("there is no way back: the copy of %s was made anew since the upgrade", s.Self)
	case was.Return != nil && was.Return.ToLeave():
		return fail.Refusedf("the server of the old cluster, which has followed, has not ended in order yet; try again in a few seconds, and see log/agent.log")
	case !req.AllowDataLoss:
		return fail.Refusedf("the way back to PostgreSQL %d loses everything that was written since %s; accept that with --allow-data-loss", u.To.Major, was.Asked.Local().Format(time.DateTime))
	}
	pg, err := s.instance(u.To)
	if err != nil {
		return err
	}
	defer func() { _ = pg.Close() }()
	if ctl, err := pg.Control(ctx); err != nil || ctl.SystemID != u.To.SystemID || ctl.State != "shut down" {
		return fail.Refusedf("there is no way back: %s is not as the upgrade left it (%s, %v)", u.To.Data, ctl.State, err)
	}
	if was.Return != nil { // it may have followed since, which makes another copy of it
		if u.To.End, err = pg.EndOfWAL(ctx); err != nil {
			return err
		}
		u.To.Copy = agent.NewCopyID()
		if err := durable.Replace(filepath.Join(u.To.Data, pgserver.CopyFile), []byte(string(u.To.Copy)+"\n"), 0o600); err != nil {
			return err
		}
	}
	return s.launch(ctx, u)
}

// endReturn ends the way back that is open.
func (s *Service) endReturn() error {
	was, err := Read(s.Layout)
	if err != nil {
		return err
	}
	return s.wish(was, true)
}

// follow has the replica that is named follow the group from the cluster that this node has left.
func (s *Service) follow(ctx context.Context, req api.MajorRequest) error {
	r, ok := s.Members.Replica(req.Replica)
	if !ok || r.ID == s.Self {
		return fail.Usagef("the group has no other replica %s", req.Replica)
	}
	was, err := Read(s.Layout)
	if err != nil {
		return err
	}
	if was.Phase != major.Done || was.To.Major != req.To {
		return fail.Refusedf("%s has not come to PostgreSQL %d by an upgrade, and does not know which cluster the group has left", s.Self, req.To)
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	_, err = rpc.Call(ctx, s.Calls, r, rpc.MajorFollow, api.MajorNeeds{To: req.To, BinDir: req.BinDir, Left: was.From.SystemID})
	return err
}

// Follow answers the primary that has this node follow.
func (s *Service) Follow(ctx context.Context, _ certs.Identity, needs api.MajorNeeds) (none rpc.Nothing, err error) {
	if !s.asked.TryLock() {
		return none, fail.Refusedf("another request about a major upgrade is being carried out on %s", s.Self)
	}
	defer s.asked.Unlock()
	return none, s.followHere(ctx, needs)
}

func (s *Service) followHere(ctx context.Context, needs api.MajorNeeds) error {
	if s.Node.PostgreSQL == nil {
		return fail.Refusedf("%s is a witness: it has no PostgreSQL", s.Self)
	}
	v, g := s.View(), s.Members.Group()
	if v == nil || !v.Quorum || g == nil {
		return fail.Unhealthyf("%s does not know its group at the moment; try again in a few seconds", s.Self)
	}
	id, err := s.left(v, needs)
	if err != nil {
		return err
	}
	now, err := programs.Inspect(ctx, s.Node.PostgreSQL.BinDir)
	if err != nil {
		return err
	}
	switch has := now.Major == needs.To; {
	case id == v.Group.SystemID && has:
		return fail.Refusedf("%s has a copy of the group's cluster; there is nothing to drop", s.Self)
	case id == "" && has: // the agent has a copy made without being asked
		return nil
	case id == v.Group.SystemID: // it was made in an empty directory, and its programs are of the old version
		id = ""
	}
	in, _, err := find(ctx, now, needs)
	if err != nil {
		return err
	}
	if in.BinDir == "" {
		return fail.Refusedf("PostgreSQL %d is not installed on %s", needs.To, s.Self)
	}
	u := major.Upgrade{
		Phase: major.Following, Self: s.Self, Asked: time.Now().UTC(),
		From: major.Cluster{Major: now.Major, Version: now.Version, BinDir: now.BinDir, Data: s.Node.PostgreSQL.Data, SystemID: id},
		To:   major.Cluster{Major: in.Major, Version: in.Version, BinDir: in.BinDir, Data: s.Node.PostgreSQL.Data},
	}
	if err := s.start(u); err != nil {
		return err
	}
	fault.Point("major.following") // the replica is to drop its copy; its server still runs
	s.Restart()
	return nil
}

// left returns the system identifier of the cluster of which this node's copy is, and refuses if it is neither the one
// that the group has left nor the one that it has. Without any copy it returns "".
func (s *Service) left(v *ag.View, needs api.MajorNeeds) (id string, err error) {
	leader, _ := v.Group.Replica(v.Record.Epoch.Leader)
	if v.Local.Data != ag.DataEmpty {
		id, err = s.Server.SystemID()
	}
	switch {
	case err != nil:
		return "", fail.Refusedf("%s holds no whole copy: %w; empty %s, and a copy is made there", s.Self, err, s.Node.PostgreSQL.Data)
	case id != "" && id != needs.Left && id != v.Group.SystemID:
		return "", fail.Refusedf("%s has a copy of cluster %s, and the group has left cluster %s: its files are not touched; move them away yourself if nobody needs them", s.Self, id, needs.Left)
	case leader.ID == s.Self || v.Record.Epoch.Phase != ag.PhaseLead || leader.Major != needs.To:
		return "", fail.Refusedf("the primary of the group does not lead with PostgreSQL %d; see coterie status", needs.To)
	}
	return id, nil
}
