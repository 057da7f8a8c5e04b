package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

const stopBudget = 10 * time.Second

// rewind brings this diverged copy back to the leader's history, and keeps the diverged tail. After a failure the next
// plan is a reseed.
func (a *Agent) rewind(ctx context.Context, v ag.View, source ag.ReplicaID) (func(), error) {
	was := v.Local.Copy
	failed := func() { a.noRewind = was }
	if err := a.stopForRepair(ctx, v, source); err != nil {
		return nil, err
	}
	if err := a.keepFork(ctx, v); err != nil {
		return nil, err
	}
	a.showProgress("rewinding")
	fault.Point("rewind.kept") // the diverged tail is kept; no mark says that a repair begins
	if err := a.cfg.Marks.SetRepairing(source); err != nil {
		return nil, err
	}
	fault.Point("rewind.marked") // the mark of the repair is on disk; nothing is changed
	if err := a.cfg.Instance.Rewind(ctx, a.showProgress); err != nil {
		return failed, fmt.Errorf("rewind: %w; this copy will be made anew from %s", err, source)
	}
	fault.Point("rewind.done") // the copy is rewound; it still has its old identity
	fresh := a.repaired(boottime.Now())
	return func() { fresh(); a.rewoundIn = v.Record.Epoch.Epoch }, a.newCopy("", v)
}

// repaired forgets what was known about the previous copy: where it ended, and that a source refused it. The new one
// has no past.
func (a *Agent) repaired(at time.Duration) func() {
	return func() {
		a.noRewind, a.observed, a.repairedAt = "", Observation{}, at
		a.checked.Store(true)
	}
}

// reseed makes a new copy from the source.
func (a *Agent) reseed(ctx context.Context, v ag.View, source ag.ReplicaID) (func(), error) {
	from, ok := v.Group.Replica(source)
	if !ok {
		return nil, fmt.Errorf("%s is not a replica of this group", source)
	}
	if err := a.stopForRepair(ctx, v, source); err != nil {
		return nil, err
	}
	if v.Local.Data == ag.DataPresent {
		if err := a.stillUncounted(ctx, v); err != nil {
			return nil, err
		}
		if err := a.keepFork(ctx, v); err != nil {
			return nil, err
		}
	}
	begins := func() error {
		if err := a.cfg.Marks.SetRepairing(source); err != nil {
			return err
		}
		fault.Point("seed.marked") // the mark of the repair is on disk; nothing is changed
		return nil
	}
	id, err := a.cfg.Seeder.Seed(ctx, SeedJob{from, v.Record.Epoch.Epoch, v.Local.Renew, begins}, a.showProgress)
	if err != nil {
		return nil, fmt.Errorf("seed from %s: %w", source, err)
	}
	fault.Point("seed.done") // the copy is installed; the marks know the old one
	return a.repaired(boottime.Now()), a.newCopy(id, v)
}

// stillUncounted looks at the record once more, now that the server is down and streams nothing (S5). The leader may
// have come to count this copy since the decision, or be about to by what it saw of the stream: it writes within the
// time of one call of the store.
func (a *Agent) stillUncounted(ctx context.Context, v ag.View) error {
	if err := retry.Sleep(ctx, v.Profile.Request); err != nil {
		return err
	}
	c, cancel := context.WithTimeout(ctx, v.Profile.Request)
	defer cancel()
	now, err := a.cfg.Store.Read(c)
	if err != nil {
		return fmt.Errorf("look whether the record counts this copy: %w", err)
	}
	m, in := now.Record.State.InV(v.Self)
	if in && m.Copy == v.Local.Copy || now.Record.Epoch.Epoch != v.Record.Epoch.Epoch {
		return errors.New("the record counts this copy by now, or is of another epoch; it is not replaced yet")
	}
	return nil
}

// stopForRepair stops the server and points the upstream at the source, from which the repair reads.
func (a *Agent) stopForRepair(ctx context.Context, v ag.View, source ag.ReplicaID) error {
	leader, ok := v.Group.Replica(source)
	if !ok {
		return fmt.Errorf("%s is not a replica of this group", source)
	}
	if _, err := a.cfg.Keeper.Stop(ctx, stopBudget); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	fault.Point("repair.stopped") // the server is stopped for a repair; the source is not named
	return a.seal.follow(ctx, leader, v.Record.Epoch.Epoch)
}

// keepFork saves the diverged tail BEFORE anything overwrites it (S5).
func (a *Agent) keepFork(ctx context.Context, v ag.View) error {
	dir, err := a.cfg.Instance.KeepFork(ctx, v.ForkPoint())
	if err != nil {
		return fmt.Errorf("keep the diverged tail: %w", err)
	}
	a.log.Info("diverged tail kept", "dir", dir, "from", v.ForkPoint().String(), "to", v.Local.Position.String())
	return nil
}

// newCopy gives the copy its new identity, in the data directory and in the marks.
func (a *Agent) newCopy(id ag.CopyID, v ag.View) error {
	if id == "" {
		id = NewCopyID()
	}
	if err := a.cfg.Instance.WriteCopy(id); err != nil {
		return fmt.Errorf("mark the copy: %w", err)
	}
	fault.Point("copy.inside") // the data directory has the copy's new identity; the marks have the old one
	if err := a.cfg.Marks.SetCopy(marks.Copy{Copy: id, Epoch: v.Record.Epoch.Epoch, Seq: v.Record.State.Seq}); err != nil {
		return err
	}
	fault.Point("copy.marked") // the marks have the new identity; the mark of a promotion is still there
	if err := a.cfg.Marks.ClearPromoting(); err != nil {
		return err
	}
	fault.Point("copy.unpromoted") // the promotion's mark is gone; the repair's mark is still there
	return a.cfg.Marks.ClearRepairing()
}

// NewCopyID makes the identity of a new copy: a random UUID.
func NewCopyID() ag.CopyID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return ag.CopyID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

var (
	// errDisplaced ends an agent whose name another agent has taken over.
	errDisplaced = errors.New("another agent runs under this node's name since, from a copy of its node directory; this one ends: " +
		"keep one of the two, and join the other machine again under another name")
	// errOccupied ends an agent under whose name another agent runs in another place.
	errOccupied = errors.New("an agent runs under this node's name elsewhere, and reports to the group: this node directory is a copy of its. " +
		"To keep that one, remove this directory and join this machine under another name (coterie join). To move the node here, stop it there first " +
		"(systemctl stop coterie), then start this one")
	errNotChecked = errors.New("this node has not yet checked that its copy is as far as it was")
)

// occupiedFor is how long a newcomer in another place waits for a sign of life of the agent that last reported under
// its name. A living one that reaches the quorum reports every statusEvery.
const occupiedFor = statusEvery + 3*time.Second

// comeIn reports whether this agent may act under its name. It may at once in the place from which the name was last
// reported: the lock of the node directory proves that the earlier agent has ended. In any other place it may when
// the earlier one has reported nothing for occupiedFor; if that reports, the error is errOccupied
// (docs/adr/0097-a-clone-does-not-take-the-place-of-the-living.md).
func (a *Agent) comeIn(v ag.View) (bool, error) {
	snap := a.snapshot.Load()
	if a.admitted || !v.Quorum || snap == nil {
		return a.admitted, nil
	}
	said := snap.Statuses[v.Self]
	switch {
	case said.Incarnation == "", said.Incarnation == a.cfg.Incarnation, said.Place == "", said.Place == a.cfg.Place: // "": it was an older version
		a.admitted = true
	case a.lastSaid.Incarnation == "":
		a.lastSaid, a.saidAt = said, boottime.Now()
		a.log.Warn("this node last ran in another place; it waits for a sign of life from there", "wait", occupiedFor, "incarnation", said.Incarnation)
	case said.Incarnation != a.lastSaid.Incarnation || said.Beat != a.lastSaid.Beat:
		return false, errOccupied
	case boottime.Now()-a.saidAt >= occupiedFor:
		a.log.Warn("there was no sign of life from the place where this node last ran; it continues here", "incarnation", said.Incarnation)
		a.admitted = true
	}
	return a.admitted, nil
}

// displaced reports whether another agent publishes under this node's name since: this one could not report for so long
// that a newcomer took it for dead. It sees what the newcomer wrote, before it publishes anything itself, and ends.
func (a *Agent) displaced() bool {
	s := a.snapshot.Load()
	if s == nil {
		return false
	}
	said := s.Statuses[a.cfg.Self].Incarnation
	if said == a.cfg.Incarnation {
		a.seenSelf = true
	}
	return a.seenSelf && said != "" && said != a.cfg.Incarnation
}

// leaveToOther fences, and ends in favour of the agent that now runs under this node's name.
func (a *Agent) leaveToOther() error {
	if s := a.snapshot.Load(); a.cfg.Keeper != nil {
		a.fence("another agent runs under this node's name", s.Record.Epoch.Epoch)
	}
	return errDisplaced
}

// checkPast looks, before this node gives any seal or is promoted, whether its copy is as far as it said it was when it
// was last heard of. It looks once when the agent has begun, and whenever the copy was away. A copy that is not so far
// was restored from an older state: it no longer holds what it acknowledged, so it becomes another copy, which nobody
// counts on (docs/internals/safety.md, "Copies").
//
// The reports of its earlier copies count as well: a node that is put back to one state twice comes back with the copy
// from before the first time, and the record may still have its name.
//
// A copy that ends earlier may nevertheless hold what it said: a crash leaves the beginning of a record, before which
// recovery ends. So the files decide.
func (a *Agent) checkPast(ctx context.Context, v ag.View) {
	if a.away {
		a.checked.Store(false)
	}
	if a.checked.Load() || !v.Quorum || v.Local.Data != ag.DataPresent || v.Local.Position.LSN == 0 {
		return
	}
	at := v.Local.Position
	was, said := a.snapshot.Load().Statuses[v.Self].past(v.Local.Copy)
	if !said || !behind(at, was) {
		a.checked.Store(true)
		return
	}
	select {
	case held := <-a.past.held:
		a.past.comparing = false
		if held.pos == was {
			a.judgePast(v, held)
		}
	default:
		if !a.past.comparing {
			a.past.comparing = true
			a.children.Go(func() { a.compare(ctx, was) })
		}
	}
}

// past returns how far a copy was when the node last reported it; said is false if it did not, or long ago.
func (s Status) past(id ag.CopyID) (at ag.Position, said bool) {
	if s.Copy == id {
		return s.Position, id != ""
	}
	at, said = s.Former[id]
	return at, said
}

// keepPast has a status say, too, what the one before it said and must not be forgotten: how far the present copy was,
// until that is compared, and how far those were that it replaces.
func (a *Agent) keepPast(s *Status, before Status, r ag.Record) {
	if was, said := before.past(s.Copy); said && (!a.checked.Load() || s.Copy == a.past.renamed) && behind(s.Position, was) {
		s.Position = was
	}
	former := maps.Clone(before.Former)
	if former == nil {
		former = map[ag.CopyID]ag.Position{}
	}
	former[before.Copy] = before.Position
	maps.DeleteFunc(former, func(id ag.CopyID, _ ag.Position) bool {
		return id == "" || id == s.Copy || !r.Counts(ag.Member{ID: a.cfg.Self, Copy: id})
	})
	if s.Former = nil; len(former) > 0 {
		s.Former = former
	}
}

// pastCopy is what this node learns of how far its copy was. The loop owns it.
type pastCopy struct {
	held      chan heldWAL
	comparing bool      // the files are asked whether they hold what this copy had
	renamed   ag.CopyID // what the copy was called that was found to be older than it was; "": none was
}

// heldWAL is whether the files hold WAL up to a position.
type heldWAL struct {
	pos  ag.Position
	held bool
}

// compareBudget bounds the reading of the files.
const compareBudget = time.Minute

// compare asks the files. The loop takes the answer over.
func (a *Agent) compare(ctx context.Context, pos ag.Position) {
	for ctx.Err() == nil {
		c, cancel := context.WithTimeout(ctx, compareBudget)
		held, err := a.cfg.Instance.Holds(c, pos)
		cancel()
		if err == nil {
			a.past.held <- heldWAL{pos, held} // there is room: the loop asks once at a time
			a.Wake()
			return
		}
		a.log.Warn("it is not known yet whether the files hold what this copy had; it seals nothing until it is", "had", pos.String(), "err", err)
		_ = retry.Sleep(ctx, time.Second)
	}
}

// judgePast accepts the copy, or makes it another one.
func (a *Agent) judgePast(v ag.View, was heldWAL) {
	if was.held {
		a.log.Info("the files hold what this copy had: it ends with the beginning of a record", "at", v.Local.Position.String(), "was", was.pos.String())
		a.checked.Store(true)
		return
	}
	a.log.Error("this copy is older than it was: it was restored, and counts as another copy from now on",
		"at", v.Local.Position.String(), "was", was.pos.String(), "copy", v.Local.Copy)
	a.cfg.Upstream.Hold() // a stream that is open names the copy that it was: the next one names the new
	id := NewCopyID()
	err := a.cfg.Marks.SetCopy(marks.Copy{Copy: v.Local.Copy, Epoch: v.Record.Epoch.Epoch, Seq: v.Record.State.Seq, Next: id})
	if err == nil { // from here on the data directory may name either
		err = a.newCopy(id, v)
	}
	if err != nil {
		a.log.Error("the copy was not marked as another one; it seals nothing until it is", "err", err)
		return
	}
	a.past.renamed = v.Local.Copy // the view has it still, and what was said of it stands
	a.checked.Store(true)
	a.Wake()
}

// behind reports whether a copy ends before where it once was.
func behind(at, was ag.Position) bool {
	return at.Timeline < was.Timeline || at.Timeline == was.Timeline && at.LSN < was.LSN
}

// otherHasAll waits until the other cluster has what this server has flushed, and returns where that ends.
func (h *handover) otherHasAll(ctx context.Context, c ClusterSwitch) (ag.LSN, error) {
	h.step("waiting until the other cluster has everything")
	ctx, cancel := context.WithTimeout(ctx, switchQuiet)
	defer cancel()
	x, err := h.endWriters(ctx)
	if err != nil {
		return 0, err
	}
	return x, c.Quiet(ctx, x)
}

// passOn has the group pass to the other cluster. The loop rests meanwhile, and then begins with that as with a copy
// that was made anew.
func (h *handover) passOn(life context.Context, c ClusterSwitch) (applied func(), err error) {
	a := h.a
	t := a.task.Load()
	began := boottime.Now()
	t.stage.Store(switchPassing)
	for time.Duration(a.turned.Load()) <= began { // a view that is being made might have this cluster and the record of the other
		if retry.Sleep(life, 5*time.Millisecond) != nil {
			t.stage.Store(restartNone)
			return h.goOn(life, context.Cause(life))
		}
	}
	passed, err := c.Pass()
	if err != nil {
		<-life.Done() // the stage stays until another agent takes the place of this one
		return nil, err
	}
	if !passed {
		t.stage.Store(restartNone)
		ctx, cancel := context.WithTimeout(context.Background(), startBudget)
		defer cancel()
		return h.goOn(ctx, errors.New("the group did not pass to the other cluster"))
	}
	a.lease.Void()
	ctx, cancel := context.WithTimeout(context.Background(), commitBudget)
	defer cancel()
	if err := a.cfg.Keeper.Disarm(ctx, h.v.Record.Epoch.Epoch); err != nil {
		a.log.Warn("keeper not disarmed", "err", err)
	}
	a.lease.SetDisarmed()
	fresh := a.repaired(boottime.Now())
	return func() {
		fresh()
		a.serving, a.running, a.up = serving{}, running{}, false
		a.startRetry = 0
		a.answered.Store(0)
	}, nil
}

// passing reports whether the group is passing to another cluster of this node, or it is not known whether it has.
func (a *Agent) passing() bool {
	t := a.task.Load()
	return t != nil && t.name == clusterTask && t.stage.Load() == switchPassing
}

// The next functions are the quarantine's mark on disk, and its end.

func (a *Agent) endQuarantine() {
	a.cond.mark = marks.Quarantine{}
	a.distrusted.Store(false)
	if a.cfg.Probes != nil {
		a.cfg.Probes.Forget()
	}
	a.writeLater(a.cfg.Marks.ClearQuarantine)
}

// markAgain is how soon the mark of a quarantine is written again that a disk did not take.
const markAgain = 2 * time.Second

// saveQuarantine writes the mark down. keepQuarantine tries it again until that was done.
func (a *Agent) saveQuarantine() {
	m := a.cond.mark
	a.cond.tried = boottime.Now()
	a.writeLater(func() error {
		err := a.cfg.Marks.SetQuarantine(m)
		if err == nil {
			a.quarantined.Store(&m)
		}
		return err
	})
}

// Trust ends the quarantine of this node's copy without a new one: an operator has checked the storage and accepts the
// risk. It returns why the copy was under quarantine.
func (a *Agent) Trust(ctx context.Context) (string, error) {
	answer := make(chan string, 1)
	select {
	case a.trust <- answer:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	a.Wake()
	select {
	case why := <-answer:
		return why, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (a *Agent) trusted(answer chan<- string) {
	c := &a.cond
	why := c.mark.Why
	c.crashes, c.stood, c.quick = nil, nil, 0
	a.endQuarantine()
	a.writeLater(func() error { return a.cfg.Marks.SetStandDowns(nil) })
	a.log.Warn("trusted again by an operator", "was", why)
	answer <- why
}
