package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/silence"
	"github.com/coteriedb/coterie/internal/agent/liveness"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/agent/recordguard"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// slowAnswer is how long a standby that answered before may take to answer again before it counts as not ready.
const slowAnswer = 10 * time.Second

// ownPause is how long after its last turn the loop takes the silence of a member for its own: it was stopped, or
// waited. A leader's loop turns every second.
const ownPause = 2 * idleTurn

// closeLag is how close a member's flush position must be before commits are made to wait for the member.
const closeLag = 16 << 20

// observe builds the view of this turn. It asks the store and the server at the same time.
func (a *Agent) observe(ctx context.Context) ag.View {
	v := ag.View{Self: a.cfg.Self}
	asked := boottime.Now()
	var snap Snapshot
	var readErr error
	var wg sync.WaitGroup
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, a.profile().Request)
		defer cancel()
		snap, readErr = a.cfg.Store.Read(ctx)
	})
	var local ag.Local
	if a.cfg.Instance != nil {
		local = a.observeLocal(ctx)
	}
	wg.Wait()
	if readErr == nil {
		a.guard.Among(snap.Group.Replicas)
		readErr = a.guard.CheckMonotonic(a.seenOf(snap), snap.Record.State.Timelines, asked)
	}
	if errors.Is(readErr, recordguard.ErrUntrusted) || errors.Is(readErr, ErrForged) {
		v.Untrusted = readErr.Error()
	}
	if readErr == nil {
		a.noteSnapshot(snap)
	} else {
		a.log.Debug("quorum not readable", "err", readErr)
		if old := a.snapshot.Load(); old != nil {
			snap = *old
		}
	}
	v.Quorum = readErr == nil
	v.Record, v.Group, v.Op = snap.Record, snap.Group, snap.Op
	if v.Group.SessionTimeout == 0 {
		v.Group.SessionTimeout = 10 * time.Second
	}
	v.Profile = a.profile()
	v.Silence = boottime.Now() - a.seenAt
	a.observeEpoch(&v)
	v.Lease = a.lease.State()
	v.Reach = a.pinger.Reach().Reached
	v.Voting = a.observeVoting(ctx, v, asked)
	for _, s := range a.seals {
		if s.Epoch == v.Record.Epoch.Epoch {
			v.Seals = append(v.Seals, s)
		}
	}
	slices.SortFunc(v.Seals, func(x, y ag.SealReport) int { return cmp.Compare(x.Member, y.Member) })
	if len(v.Seals) > 0 && v.SealsSuffice() {
		if a.sealedAt == 0 {
			a.sealedAt = boottime.Now()
		}
		v.Sealed = boottime.Now() - a.sealedAt
	} else {
		a.sealedAt = 0
	}
	if a.cfg.Instance != nil {
		local.Armed = a.lease.Armed()
		v.Local = local
		a.noteRefusal(&v)
		v.Streams = a.observeStreams(v)
		v.Local.Sync = a.sync // a stream of another copy voids the proof
	}
	if t := a.task.Load(); t != nil {
		v.Busy = t.name
	}
	if a.cfg.Instance != nil {
		a.observeHealth(&v)
	}
	v.Ready = a.ready()
	return v
}

// observeEpoch measures for how long this node has known the present epoch, and what has become of an outgoing leader.
func (a *Agent) observeEpoch(v *ag.View) {
	e := v.Record.Epoch
	if a.epochSeen != e.Epoch {
		a.epochSeen, a.epochAt = e.Epoch, boottime.Now()
	}
	v.Since, v.Superseded = boottime.Now()-a.epochAt, a.answers.Superseded(e.Epoch, e.Outgoing)
}

// observeVoting returns this node's part in fast takeover. A leader that renewed after its death was seen is probed
// again: it may have renewed before it died.
func (a *Agent) observeVoting(ctx context.Context, v ag.View, asked time.Duration) ag.Voting {
	if !v.Quorum {
		return ag.Voting{}
	}
	a.noteUnheard(v)
	now, again := a.voter.Look(v.Record, asked, v.Silence)
	if r, ok := v.Group.Replica(again); ok {
		a.children.Go(func() { a.voter.Probe(ctx, r) })
	}
	return now
}

// seenNow restarts the stopwatch of the leader's renewals.
func (a *Agent) seenNow() {
	a.seenAt = boottime.Now()
	a.renewal.Store(int64(a.seenAt))
}

// dampedFor is for how long a silence must be longer to be unusual, after a leader that was deposed for its silence
// was found to be alive.
const dampedFor = 10 * time.Minute

// noteUnheard looks whether a leader that was deposed for its silence had been alive: the same agent has reported soon
// after.
func (a *Agent) noteUnheard(v ag.View) {
	u, snap := v.Record.Epoch.Unheard, a.snapshot.Load()
	if u == (ag.Evidence{}) || u == a.unheard || snap == nil {
		return
	}
	for id, s := range snap.Statuses {
		if id == v.Self {
			continue // it may have been stopped, and saw the epoch only when it went on: it cannot tell how late that is
		}
		if s.Incarnation == u.Incarnation && s.Epoch > u.Epoch {
			a.unheard = u
			if v.Since > v.Profile.Observer {
				return // it would have been deposed all the same: it was silent until its lease had ended
			}
			a.damped.Store(int64(boottime.Now() + dampedFor))
			a.log.Warn("a primary that was deposed because nothing was heard of it is alive: for some minutes, only longer silences are unusual",
				"member", id, "epoch", u.Epoch, "silence", u.Silent, "for", dampedFor)
		}
	}
}

// watched returns the leader whose silence this node judges. Any goroutine may call it.
func (a *Agent) watched() liveness.Watched {
	v, snap := a.view.Load(), a.snapshot.Load()
	if v == nil || snap == nil || v.Record.Epoch.Leader == v.Self || v.Record.Epoch.Phase != ag.PhaseLead {
		return liveness.Watched{}
	}
	id := v.Record.Epoch.Leader
	damped := boottime.Now() < time.Duration(a.damped.Load())
	w := liveness.Watched{
		Leader: id, Damped: damped, Judge: v.Group.JudgesSilence(), Beat: v.Profile.Beat, Renewed: time.Duration(a.renewal.Load()),
		Limits: silence.Limits{Floor: v.Group.SilenceFloor(v.Profile, damped), Most: v.Patience()},
	}
	if a.cfg.Upstream != nil {
		if up := a.cfg.Upstream.Status(); up.Source == id {
			w.WAL = up.LastRead
		}
	}
	switch s := snap.Statuses[id]; {
	case v.Record.Lead.Restarting:
		w.Declared = "it has announced a restart"
	case s.Ill != "" || s.Concern != "":
		w.Declared = "it reports trouble: " + s.Ill + s.Concern
	}
	return w
}

// seenOf returns what a snapshot says about the record's progress. A revision is remembered, and one below it refused
// from then on: no later one is taken over from a witness's member, which a thief may have.
func (a *Agent) seenOf(s Snapshot) marks.Seen {
	e, st := s.Record.Epoch, s.Record.State
	now := marks.Seen{Epoch: e.Epoch, Seq: st.Seq, Store: s.StoreID, Rev: s.StoreRev}
	if e.Phase != ag.PhaseSeal && e.Leader != a.cfg.Self { // its own promotion has a mark, and its disk is not to be kept from that
		now.Chosen = e.Leader
	}
	if e.Phase == ag.PhaseLead {
		now.Leader = e.Leader
	}
	if st.Epoch != 0 { // 0: the state is one with which a recovery or a major upgrade begins
		now.Led, now.By = st.Epoch, st.Leader
	}
	if s.ByWitness {
		now.Rev = min(now.Rev, a.guard.Latest().Rev)
	}
	return now
}

// noteSnapshot restarts the stopwatch if /lead or /epoch has changed: only what this node itself saw counts.
func (a *Agent) noteSnapshot(s Snapshot) {
	if s.Record.Revs.Lead != a.seen.Lead || s.Record.Revs.Epoch != a.seen.Epoch {
		a.seen = s.Record.Revs
		a.seenNow()
	}
	if old := a.snapshot.Load(); a.cfg.OnGroup != nil && (old == nil || !sameGroup(old.Group, s.Group)) {
		a.cfg.OnGroup(s.Group)
	}
	a.snapshot.Store(&s)
}

// refusal is what a source answered about a copy. It stands as long as that source leads, even while the source is not
// asked.
type refusal struct {
	copy   ag.CopyID
	source ag.ReplicaID
	epoch  ag.Epoch
}

func (a *Agent) noteRefusal(v *ag.View) {
	l := &v.Local
	if l.Refused {
		a.refusal = refusal{l.Copy, l.Source, l.SourceEp}
	}
	l.Refused = a.refusal == refusal{l.Copy, v.Record.Epoch.Leader, v.Record.Epoch.Epoch} && l.Copy != ""
	// If a copy's WAL continues beyond the fork without a checkpoint there, pg_rewind reports that no rewind is needed
	// and leaves the copy as it is. So a copy that has diverged in the epoch in which it was rewound is made anew.
	l.NoRewind = l.NoRewind || (l.Refused || v.Diverged()) && a.rewoundIn != 0 && a.rewoundIn == v.Record.Epoch.Epoch
	if l.Refused && l.Source == "" { // held since: otherwise the hold would remove its own reason
		l.Source, l.SourceEp = a.refusal.source, a.refusal.epoch
	}
}

func (a *Agent) observeLocal(ctx context.Context) ag.Local {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	l := ag.Local{Data: a.cfg.Instance.Data(), Server: ag.ServerDown, Sync: a.sync, Opened: a.opened, Restart: a.restart, Attached: a.attached, EndOfRec: a.endOfRec, History: a.timelines, Xids: a.xids}
	mark, err := a.cfg.Marks.Copy()
	if err != nil {
		a.log.Error("copy mark unreadable", "err", err)
	}
	l.Copy = mark.Copy
	l.Promised, _ = a.cfg.Marks.Promised()
	if began, err := a.cfg.Marks.Promoting(); err != nil {
		a.log.Error("promotion mark unreadable", "err", err)
	} else {
		l.Began = began.TLI
	}
	if l.Data == ag.DataPresent && !a.busyWith("seed", "rewind") {
		inside, err := a.cfg.Instance.InsideCopy()
		id, known := mark.Is(inside)
		l.Copy = id
		switch {
		case a.cfg.Marks.Repairing():
			l.Data = ag.DataPartial // a crash interrupted a rewind or seeding: made anew, whatever it looks like
		case err != nil || !known:
			l.Data = ag.DataForeign
		}
	}
	l.NoRewind = a.noRewind != "" && a.noRewind == l.Copy
	up := a.cfg.Upstream.Status()
	l.Source, l.SourceEp, l.Refused = up.Source, up.Epoch, up.Diverged && up.At > a.repairedAt
	ks, err := a.cfg.Keeper.Status(ctx)
	if err != nil {
		a.log.Warn("keeper does not answer", "err", err)
		l.Server, l.Position = ag.ServerStarting, a.observed.Position // not known to be down
		if a.up && a.lease.Armed() != 0 {
			l.Server = ag.ServerWritable
		}
		return l
	}
	a.pid = ks.ServerPID
	a.generation = max(a.generation, ks.Generation)
	if ks.Armed == 0 && a.lease.Armed() != 0 && ks.ServerPID == 0 {
		a.lease.SetDisarmed() // the keeper fenced
		a.lease.Void()
	}
	a.observeServer(ctx, &l, ks)
	return l
}

// observeServer asks the server, or reads its files if it is down.
func (a *Agent) observeServer(ctx context.Context, l *ag.Local, ks KeeperState) {
	wasUp := a.up
	a.up = false
	if ks.ServerPID == 0 {
		a.observeFiles(ctx, l, wasUp)
		return
	}
	suspected := a.suspected.Load() // before the server is asked: a later finding is for the next turn
	o, err := a.cfg.Instance.Observe(ctx)
	if err != nil {
		l.Server, l.Position = ag.ServerStarting, a.observed.Position
		switch {
		case wasUp && a.lease.Armed() != 0:
			l.Server, a.up = ag.ServerWritable, true // it was writable, and nothing shows that it ended
		case wasUp && a.observed.InRecovery && boottime.Now()-a.upAt < slowAnswer:
			l.Server, a.up = ag.ServerRecovery, true // busy, not gone
		}
		return
	}
	a.up, a.upAt, a.observed = true, boottime.Now(), o
	l.Position = o.Position
	l.Server, l.Late = ag.ServerRecovery, late(o, o.Position)
	l.Stuck = a.stuck.look(o, a.cfg.Upstream.Status(), boottime.Now())
	if !o.InRecovery {
		l.Server = ag.ServerWritable
		l.Foreign, l.Doubled = a.foreign(o), o.Doubled
		if w := o.Written; w != nil && l.Foreign == "" && a.ownsSync() && !a.gaveSync(w.P, w.N) {
			a.rewrite, a.sync.Proven = true, false
			a.log.Error("another program wrote a synchronous_standby_names that the next reload puts in force: it is replaced. "+
				"Settings of the group are changed by ALTER AVAILABILITY GROUP", "waits_for", w.N, "members", w.P)
		}
	}
	if s := suspected; s != a.reproved {
		a.reproved, a.sync.Proven = s, false // a commit behind the barrier may lack an acknowledgement
		a.voided++
	}
}

// observeFiles reads the files of a server that is down. wasUp means that it was not so at the last turn.
func (a *Agent) observeFiles(ctx context.Context, l *ag.Local, wasUp bool) {
	if away := l.Data != ag.DataPresent && !a.busyWith("seed", "rewind"); away != a.away {
		a.away = away
		if !away { // where the copy that is found ends is read anew: it may not be as far as the one that was here
			a.observed = Observation{}
		}
	}
	if !a.away && (wasUp || a.observed.Position.LSN == 0) {
		if pos, err := a.cfg.Instance.EndOfWAL(ctx); err == nil {
			a.observed = Observation{Position: pos}
		} else if l.Data == ag.DataPresent {
			a.log.Debug("end of WAL not readable", "err", err)
		}
	}
	l.Position = a.observed.Position
	if !a.handingOver() { // a hand-over may start it again, with the same setting
		a.serving = serving{}
	}
	a.running = running{}
	l.Sync, l.EndOfRec, l.History, l.Xids = ag.Sync{}, 0, nil, ag.Xids{}
}

// foreign returns the name of a reserved setting that has another value than this agent gave it last; else "".
func (a *Agent) foreign(o Observation) string {
	if !a.ownsSync() || a.gaveSync(o.P, o.N) {
		return ""
	}
	return "synchronous_standby_names"
}

// ownsSync reports whether the setting is this agent's and no task is changing it. A hand-over leaves it as it is.
func (a *Agent) ownsSync() bool { return a.leading != nil && (a.task.Load() == nil || a.handingOver()) }

// gaveSync reports whether this agent gave PostgreSQL that setting last, or may have.
func (a *Agent) gaveSync(p []ag.ReplicaID, n int) bool {
	is := ag.Sync{P: p, N: n}.Same
	return is(a.sync) || a.tried != nil && is(*a.tried)
}

// observeStreams describes every other replica's stream, open or not.
func (a *Agent) observeStreams(v ag.View) []ag.Stream {
	if a.leading == nil {
		return nil
	}
	now := boottime.Now()
	own := now-time.Duration(a.turned.Load()) > ownPause // this process did not run: the silence may be its own
	open := map[ag.ReplicaID]Stream{}
	for _, s := range a.cfg.Downstream.Streams() {
		open[s.Member] = s
	}
	reach := a.pinger.Reach()
	var out []ag.Stream
	for _, r := range v.Group.Replicas {
		if r.ID == v.Self || !r.HasData() {
			continue
		}
		f := a.leading.streams[r.ID]
		if f == nil {
			f = &streamFacts{feedback: now}
			a.leading.streams[r.ID] = f
		}
		s, isOpen := open[r.ID]
		if isOpen {
			if f.copy != "" && f.copy != s.Copy {
				a.sync.Proven = false // the flushed position of the old copy proves nothing about this one
				a.voided++
			}
			f.open, f.session, f.copy, f.flush, f.apply = true, s.Session, s.Copy, s.Flush, s.Apply
			f.feedback = max(f.feedback, s.LastFeedback)
			if own {
				f.feedback = now
			}
		} else {
			f.open = false
		}
		out = append(out, ag.Stream{
			Member: r.ID, Copy: f.copy, Open: f.open, Flush: f.flush, Silent: now - f.feedback,
			Close: f.open && f.flush != 0 && f.flush+closeLag >= max(a.observed.Flushed.LSN, v.Local.Position.LSN), Refused: !f.open && reach.Refused(r.ID),
			Gone: !f.open && a.saysGone(v, r.ID), Bare: !f.open && a.saysBare(v, r.ID),
		})
	}
	return out
}

// saysGone reports whether a member reports that it no longer has the copy that V counts, or that it waits for V to
// drop it. A report about another copy does not count.
func (a *Agent) saysGone(v ag.View, id ag.ReplicaID) bool {
	m, in := v.Record.State.InV(id)
	snap := a.snapshot.Load()
	if !in || snap == nil {
		return false
	}
	s, ok := snap.Statuses[id]
	return ok && s.Copy == m.Copy && (s.Data != ag.DataPresent || s.Rule == ag.RuleAwaitDrop)
}

// saysBare reports whether a member reports that it has no whole copy of the group's cluster: none, half of one, or one
// of another cluster. A report of an earlier epoch does not count: the member may have got a copy since.
func (a *Agent) saysBare(v ag.View, id ag.ReplicaID) bool {
	snap := a.snapshot.Load()
	if snap == nil {
		return false
	}
	s, ok := snap.Statuses[id]
	return ok && s.Epoch == v.Record.Epoch.Epoch && s.Data != "" && s.Data != ag.DataPresent
}

func (a *Agent) busyWith(names ...string) bool {
	t := a.task.Load()
	return t != nil && slices.Contains(names, t.name)
}

func (a *Agent) handingOver() bool { return a.busyWith("hand-over", clusterTask, againTask) }

// stuckAfter is how long a standby may make no progress before it is restarted. It doubles, up to stuckMost, with every
// restart that did not help.
const (
	stuckAfter = 10 * time.Second
	stuckMost  = 5 * time.Minute
)

// pausedAfter is that time while replay is paused. After a failover a new primary may wait for this standby.
const pausedAfter = time.Second

// stuck detects a standby that cannot read what it has received and does not ask for it again. The startup process of
// PostgreSQL assumes that the log continues to the position that the last walreceiver has flushed. If a record before
// that is unreadable, it ends each new walreceiver before that has connected (WaitForWALToBecomeAvailable in
// xlogrecovery.c). While replay is paused, it starts none. After a restart it fetches the whole segment again.
type stuck struct {
	at     ag.Position   // end of what had been received when that last changed
	replay ag.LSN        // end of what had been replayed then
	since  time.Duration // boottime of that change
	where  ag.LSN        // how far it had replayed at the last restart for this reason
	starts int           // number of restarts at that place
}

// look returns why the standby does not continue, or "". The loop calls it once a turn.
func (s *stuck) look(o Observation, up UpstreamStatus, now time.Duration) string {
	if o.Replay > s.where {
		s.starts = 0
	}
	if o.InRecovery && o.Short != "" {
		return "its server has paused replay, and does not continue before it is started again: " + o.Short
	}
	still := o.InRecovery && o.Streamed && o.Replay < o.Flushed.LSN && o.Flushed == s.at && o.Replay == s.replay
	asks := up.Connected || up.Held || up.Source == ""
	if !still || asks {
		s.at, s.replay, s.since = o.Flushed, o.Replay, now
		return ""
	}
	patience := min(stuckAfter<<min(s.starts, 10), stuckMost)
	if o.Paused {
		patience = pausedAfter
	}
	if now-s.since < patience {
		return ""
	}
	again := ""
	if s.starts > 0 {
		again = fmt.Sprintf("; %d starts did not help: see PostgreSQL's log, and coterie replica seed NAME makes the copy anew", s.starts)
	}
	why := "cannot read on"
	if o.Paused {
		why = "has its replay paused since its stream broke"
	}
	return fmt.Sprintf("its server has replayed up to %s of %s, %s, and does not ask for more%s", o.Replay, o.Flushed.LSN, why, again)
}

// restarted records that the server was stopped for this reason.
func (s *stuck) restarted() {
	s.starts++
	s.where, s.at = s.replay, ag.Position{}
}
