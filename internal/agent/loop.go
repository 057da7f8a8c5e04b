package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/planguard"
	"github.com/coteriedb/coterie/internal/agent/lease"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// How often the loop turns when nothing wakes it. calmTurn applies where every possible event wakes it; idleTurn
// otherwise.
const (
	idleTurn = time.Second
	calmTurn = 3 * time.Second
)

// loop observes, decides and acts until ctx is done.
func (a *Agent) loop(ctx context.Context) error {
	watch := a.cfg.Store.Watch(ctx)
	var exits <-chan string
	var moved <-chan struct{}
	if a.cfg.Instance != nil {
		exits, moved = a.cfg.Keeper.Exits(), a.cfg.Downstream.Changed()
	}
	var calm <-chan time.Time // not nil: flush positions are ignored until it fires
	var due time.Duration     // boottime of the next turn if nothing happens; 0: now
	for {
		if broken := a.violation.Load(); broken != nil {
			return *broken
		}
		if due == 0 {
			again, err := a.turn(ctx)
			if err != nil {
				return err
			}
			due = boottime.Now() + a.idleFor(again)
		}
		timer := time.NewTimer(min(boottime.Until(due), a.untilSilence()))
		next := time.Duration(0)
		select {
		case <-ctx.Done():
			timer.Stop()
			a.cancelTask("the agent ends")
			return nil
		case why, ok := <-exits:
			if !ok {
				return errors.New("the keeper is gone; without it this node may not run a server: coterie agent must be started again")
			}
			a.log.Warn("server ended", "exit", why)
			a.serverEnded(ctx, why)
		case found := <-a.crashReports:
			a.noteCrash(found)
		case answer := <-a.trust:
			a.trusted(answer)
		case h := <-watch:
			if a.renewed(h) {
				next = due // nothing is new except that the leader is alive
			}
		case <-moved:
			moved, calm = nil, time.After(a.calm())
		case <-calm:
			moved, calm = a.cfg.Downstream.Changed(), nil
		case <-a.wake:
		case r := <-a.reports:
			a.sealAnswered(r)
		case r := <-a.restarts:
			if a.beginRestart(ctx, r) {
				timer.Stop()
				return ErrRestart
			}
		case r := <-a.serverRestarts:
			a.beginServerRestart(ctx, r)
		case r := <-a.switches:
			a.beginSwitch(ctx, r)
		case p := <-a.prepared:
			a.notePrepared(p)
		case r := <-a.done:
			if a.taskEnded(r) {
				timer.Stop()
				return ErrRestart
			}
		case <-timer.C:
		}
		timer.Stop()
		due = next
	}
}

// renewed takes over a renewal of /lead that contains nothing new, and reports whether the hint was only that. It
// restarts the stopwatch without a turn. Whether the leader is silent is still decided from a record that was read.
func (a *Agent) renewed(h Hint) bool {
	v, snap := a.view.Load(), a.snapshot.Load()
	if h.Changed || v == nil || snap == nil || !v.Quorum || v.Voting.Evidence != (ag.Evidence{}) || !h.Lead.Same(snap.Record.Lead) {
		return false
	}
	if h.LeadRev > a.seen.Lead {
		a.seen.Lead = h.LeadRev
		a.seenNow()
	}
	return true
}

// idleFor returns how long the loop may wait for an event after a turn. again: the turn asked for another one soon.
func (a *Agent) idleFor(again bool) time.Duration {
	v, p := a.view.Load(), a.plan.Load()
	switch {
	case again:
		return 20 * time.Millisecond
	case v == nil || p == nil:
		return idleTurn
	case p.Rule == ag.RuleSync:
		return idleTurn / 20 // the gate may be waiting for it
	case !p.Open && v.Outgoing() != "":
		return idleTurn / 20
	}
	if in, ok := v.VoteIn(); ok {
		return in + time.Millisecond
	}
	if p.Rule == ag.RuleWitness || p.Rule == ag.RuleStandBy && a.cfg.Upstream.Status().Connected {
		return min(calmTurn, max(idleTurn, a.statusAt+statusEvery-boottime.Now())) // the status is a sign of life
	}
	return idleTurn
}

// untilSilence returns how long the loop may wait at most: until the leader's silence becomes long enough, which only
// this node's stopwatch tells.
func (a *Agent) untilSilence() time.Duration {
	v := a.view.Load()
	if v == nil {
		return idleTurn
	}
	if silence := boottime.Now() - a.seenAt; silence < v.Patience() {
		return v.Patience() - silence + time.Millisecond
	}
	return idleTurn
}

// calm returns for how long moving flush positions do not turn the loop: a busy stream moves them a thousand times a
// second. While the bookkeeping waits for one, it is short.
func (a *Agent) calm() time.Duration {
	if p := a.plan.Load(); p != nil && p.Rule == ag.RuleSync {
		return 5 * time.Millisecond
	}
	return idleTurn
}

// turn makes one view and one plan. It returns true if another turn should follow soon. An error ends the agent.
func (a *Agent) turn(ctx context.Context) (again bool, err error) {
	if a.passing() {
		a.turned.Store(int64(boottime.Now()))
		return true, nil
	}
	v := a.observe(ctx)
	if ctx.Err() != nil {
		return false, nil // an observation under a cancelled context means nothing
	}
	a.turned.Store(int64(boottime.Now()))
	if a.displaced() {
		return false, a.leaveToOther()
	}
	if in, err := a.comeIn(v); !in && v.Quorum {
		return false, err
	}
	a.show(v)
	a.housekeep(ctx, v)
	a.keepQuarantine(ctx, v)
	a.checkPast(ctx, v)
	a.refuseForced(v)
	p := ag.Decide(v)
	broken := planguard.Check(v, p)
	assert.That(broken == nil, "%v", broken)
	a.plan.Store(&p)
	if made, isNew, keep := a.history.Note(v, p); isNew {
		if keep {
			a.writeLater(func() error { return a.history.Write(made) })
		}
		a.log.Info("decided", "rule", p.Rule, "because", p.Because, "epoch", v.Record.Epoch.Epoch, "phase", v.Record.Epoch.Phase,
			"server", v.Local.Server, "position", v.Local.Position.String())
	}
	if p.Rule == ag.RuleServe || v.Local.Server != ag.ServerWritable {
		a.cleared.Store(a.reproved) // proven and flushed, or no longer a primary
	}
	a.publish(ctx, v, p)
	if p.Commit != nil {
		if !a.commit(ctx, v, p) {
			return true, nil
		}
		a.noteStandDown(v, p)
		again = true
	}
	for _, act := range p.Actions {
		a.act(ctx, v, act)
	}
	a.expectPromotion(v)
	a.report(ctx, v, p)
	return again || p.Rule == ag.RuleSeal || p.Rule == ag.RuleDoubled || v.Record.Epoch.Phase != ag.PhaseLead, nil
}

// show publishes the view, and wakes the goroutine that watches for strays where there may be any.
func (a *Agent) show(v ag.View) {
	a.view.Store(&v)
	if acknowledged(v) {
		select {
		case a.acknowledged <- struct{}{}:
		default: // not read yet, or it watches
		}
	}
}

// commit makes the plan's transaction. false means that the record has changed, so the actions are void.
func (a *Agent) commit(ctx context.Context, v ag.View, p ag.Plan) bool {
	ctx, cancel := context.WithTimeout(ctx, v.Profile.Request)
	defer cancel()
	c := *p.Commit
	if c.Lead != nil {
		l := *c.Lead
		l.Incarnation = a.cfg.Incarnation
		c.Lead = &l
		if l.Released {
			a.lease.Void()
		}
	}
	if s := a.snapshot.Load(); s != nil && (c.Epoch != nil || c.State != nil || c.Vote != nil || c.Unvote != "") {
		c.Group = s.GroupRev // of the view: this loop alone reads
	}
	if c.Epoch != nil {
		a.lease.Hold(nil) // otherwise a renewal guarded by the revision that is about to change would look like a lost lease
	}
	fault.Point("record.unwritten") // the plan is made and the lease given up for it; the record has not changed
	err := a.cfg.Store.Commit(ctx, c)
	if err != nil {
		a.log.Info("record not changed", "rule", p.Rule, "err", err)
		return false
	}
	changed(c)
	a.Wake()
	return true
}

// changed is where a test ends this process as soon as the record has changed.
func changed(c ag.Commit) {
	switch {
	case c.Epoch == nil && c.State != nil:
		fault.Point("record.state") // the record promises something else; PostgreSQL does as before
	case c.Epoch == nil && c.Lead != nil && c.Lead.Released:
		fault.Point("record.released") // the record says that this node leads no more; its agent has not acted
	case c.Epoch == nil:
	case c.Epoch.Phase == ag.PhaseSeal:
		fault.Point("record.claimed") // the record says SEAL; nobody was asked for a seal
	case c.Epoch.Phase == ag.PhasePromote:
		fault.Point("record.chosen") // the record says PROMOTE; the chosen one has not begun
	case c.Epoch.Phase == ag.PhaseLead:
		fault.Point("record.led") // the record says LEAD; the gate is shut
	}
}

// housekeep follows what the view shows. It drops seals and tasks of another epoch, renews the lease exactly while this
// node may hold it, and opens or closes the streams of the members.
func (a *Agent) housekeep(ctx context.Context, v ag.View) {
	e := v.Record.Epoch
	for id, s := range a.seals {
		if s.Epoch != e.Epoch {
			delete(a.seals, id)
		}
	}
	if t := a.task.Load(); t != nil && t.epoch != 0 && v.Quorum && t.epoch != e.Epoch {
		a.cancelTask("the epoch moved on")
	}
	if a.cfg.Instance == nil {
		return
	}
	a.holdLease(v)
	a.sendHeartbeats(v)
	a.disarm(ctx, v)
	a.feed(v)
	a.lead(v)
	a.cfg.Store.Prefer(e.Leader)
}

// leadership is what a node knows about the members only while it leads an epoch. It is made when the epoch's streams
// are opened and dropped when they are closed: nothing in it passes from one epoch to the next.
type leadership struct {
	epoch   ag.Epoch
	streams map[ag.ReplicaID]*streamFacts
}

// lead begins and ends the leadership, as the view shows it.
func (a *Agent) lead(v ag.View) {
	e := v.Record.Epoch
	if !v.Quorum {
		return
	}
	writable := v.Local.Server == ag.ServerWritable
	leads := e.Leader == v.Self && e.Phase == ag.PhaseLead && writable && v.Local.Armed == e.Epoch
	if leads && (a.leading == nil || a.leading.epoch != e.Epoch) {
		assert.That(a.leading == nil || a.leading.epoch < e.Epoch, "epoch %d is led after a later one", e.Epoch)
		a.leading = &leadership{e.Epoch, map[ag.ReplicaID]*streamFacts{}}
		a.cfg.Downstream.Lead(e.Epoch, true)
		fault.Point("lead.streams") // the streams of the epoch are open; the mark of the promotion is still there
	}
	if leads && v.Local.Began != 0 { // in every turn until it is gone: a copy with the mark counts for less (package recovery)
		if err := a.cfg.Marks.ClearPromoting(); err != nil {
			a.log.Warn("promotion mark not cleared", "err", err)
		}
	}
	if l := a.leading; l != nil && (e.Leader != v.Self || e.Epoch != l.epoch || !writable) && !a.handingOver() {
		a.cfg.Downstream.Lead(l.epoch, false)
		fault.Point("lead.ended") // the streams of the epoch are closed; the server may still run
		a.leading = nil
	}
}

// feeding is the part of a member whose log a candidate lacks the end of. It is made when the log is opened for the
// candidate of an epoch, and dropped when it is closed.
type feeding struct{ epoch ag.Epoch }

// feed opens this node's log for a candidate that lacks its end, and closes it again. It is closed BEFORE this node
// follows any member.
func (a *Agent) feed(v ag.View) {
	to, feeds := v.Feeds()
	switch e := v.Record.Epoch.Epoch; {
	case feeds && (a.feeding == nil || a.feeding.epoch != e):
		a.feeding = &feeding{e}
		a.cfg.Downstream.Feed(e, to)
	case !feeds && a.feeding != nil:
		a.cfg.Downstream.Lead(a.feeding.epoch, false)
		a.feeding = nil
	}
}

// holdLease renews while this node holds the epoch: as a candidate, while its promotion is under way, and in LEAD while
// the server is writable or is being handed over.
func (a *Agent) holdLease(v ag.View) {
	e := v.Record.Epoch
	restarting := a.restarting()
	if a.fencing || restarting == restartDetached {
		a.lease.Hold(nil)
		return
	}
	if why := a.outranked(e); why != "" && v.Local.Server == ag.ServerWritable {
		// The store knows of it, whatever it answers to this node: its renewals count for nobody.
		if v.Lease.Valid {
			a.log.Warn("lease given up", "epoch", e.Epoch, "why", why)
			a.Wake()
		}
		a.lease.Void()
		return
	}
	if !v.Quorum {
		return // renewals continue: the revision of /epoch guards them
	}
	alive := v.Local.Server == ag.ServerWritable || e.Phase != ag.PhaseLead || a.handingOver()
	if e.Leader != v.Self || v.Released() || !alive {
		a.lease.Hold(nil)
		return
	}
	h := &lease.Holding{
		Epoch: e.Epoch, EpochRev: v.Record.Revs.Epoch,
		Lead: ag.Lead{Epoch: e.Epoch, Holder: v.Self, Incarnation: a.cfg.Incarnation, Answer: v.Group.Answers(v.Profile)},
	}
	h.Lead.Restarting = restarting == restartAnnounced || a.attached
	h.Lead.Settled = v.Settled()
	if e.Phase != ag.PhaseLead {
		h.ByProgress, h.Lead.Progress = true, a.progressOf(v)
	}
	a.lease.Hold(h)
}

// outranked returns why this node leads no more, whatever the store shows it; "": nothing was heard of that. Of two
// replicas that the store shows two leaders of one epoch, both give up, and of two that founded a quorum each.
func (a *Agent) outranked(e ag.EpochRecord) string {
	if later := a.guard.HeardEpoch(); later > e.Epoch {
		return fmt.Sprintf("a replica has seen epoch %d, which the store does not show this node", later)
	}
	if err := a.guard.HeardRival(); err != nil {
		return err.Error()
	}
	if other := a.guard.HeardLeader(e.Epoch, a.cfg.Self); other != "" && e.Leader == a.cfg.Self {
		return fmt.Sprintf("the store shows a replica that %s leads this epoch", other)
	}
	return ""
}

// endPreparing takes back the progress of a preparation that is over. A task that runs shows its own.
func (a *Agent) endPreparing() {
	if a.task.Load() == nil {
		a.progress.Store(nil)
	}
}

// startGrace is how long a starting server counts as making progress. It reports neither its progress nor its position.
const startGrace = time.Minute

// progressOf describes the progress of a candidate or a promotion. The claim is renewed only when this changes: a
// candidate that hangs is outbid, and a long replay is not (docs/internals/safety.md, "Epochs and phases").
func (a *Agent) progressOf(v ag.View) string {
	if v.Record.Epoch.Phase == ag.PhaseSeal {
		return fmt.Sprintf("%d seals, %s", len(v.Seals), v.Local.Position)
	}
	step := ""
	if p := a.progress.Load(); p != nil {
		step = *p
	}
	now := boottime.Now()
	switch since := max(a.answeredAt, a.cond.liveFrom); {
	case v.Local.Server == ag.ServerRecovery || v.Local.Server == ag.ServerWritable:
		a.answeredAt = now
	case (v.Local.Server == ag.ServerStarting || a.busyWith("start")) && now-since < startGrace:
		step = fmt.Sprintf("starting for %d s", int((now - since).Seconds()))
	}
	return fmt.Sprintf("%s, %s, replayed %s, %s", v.Local.Server, v.Local.Position, a.observed.Replay, step)
}

// sendHeartbeats sends heartbeats to the voters while this node leads or is about to lead.
func (a *Agent) sendHeartbeats(v ag.View) {
	if !v.Quorum {
		return // heartbeats continue: the lease bounds what they extend
	}
	e := v.Record.Epoch
	if e.Leader != v.Self || e.Phase == ag.PhaseSeal {
		a.heartbeats.Want(0, nil)
		return
	}
	var voters []ag.Replica
	for _, r := range v.Group.Replicas {
		if r.Voter && r.ID != v.Self {
			voters = append(voters, r)
		}
	}
	a.heartbeats.Want(e.Epoch, voters)
}

// disarm removes the deadline of a server that is down. It would otherwise end the standby that is started next.
func (a *Agent) disarm(ctx context.Context, v ag.View) {
	if v.Local.Server != ag.ServerDown || v.Local.Armed == 0 || a.task.Load() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := a.cfg.Keeper.Disarm(ctx, v.Local.Armed); err != nil {
		a.log.Warn("keeper not disarmed", "epoch", v.Local.Armed, "err", err)
		return
	}
	a.lease.SetDisarmedOf(v.Local.Armed)
}

// chores does from time to time what decides nothing. It keeps replication slots for every other member, so that any
// member can follow any other after a failover, and moves the quorum's leadership away from the primary.
func (a *Agent) chores(ctx context.Context) {
	for {
		if retry.Sleep(ctx, boottime.UntilNext(3*time.Second)) != nil {
			return
		}
		v, snap := a.view.Load(), a.snapshot.Load()
		if v == nil || snap == nil || !v.Quorum {
			continue
		}
		if v.Record.Epoch.Leader == v.Self {
			a.cfg.Store.Yield(ctx, a.pinger.Reach().Reached)
		}
		if v.Local.Data != ag.DataPresent || v.Busy != "" || v.Local.Server != ag.ServerRecovery && v.Local.Server != ag.ServerWritable {
			continue
		}
		if v.Record.Epoch.Phase == ag.PhaseLead {
			a.seal.readersLose(false)
		}
		at := map[ag.ReplicaID]ag.LSN{}
		for _, r := range snap.Group.Replicas {
			if r.ID != v.Self && r.HasData() {
				at[r.ID] = snap.Statuses[r.ID].Position.LSN
			}
		}
		c, cancel := context.WithTimeout(ctx, 5*time.Second)
		if err := a.cfg.Instance.EnsureSlots(c, at); err != nil && ctx.Err() == nil {
			a.log.Warn("replication slots not as they should be", "err", err)
		}
		cancel()
	}
}

// givenUp notes in the history that a planned failover was given up. Of an unknown outcome the record will tell.
func (a *Agent) givenUp(v ag.View, to ag.ReplicaID, err error) {
	if errors.Is(err, ErrUnknown) {
		return
	}
	made := a.history.GiveUp(v, to, err)
	a.writeLater(func() error { return a.history.Write(made) })
}
