package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// Probes watches this node's server and disks, independently of the loop.
type Probes interface {
	// Report returns the last findings. It never blocks.
	Report() Findings
	// CrashReport returns why the server ended, from the end of its log.
	CrashReport(ctx context.Context) (CrashReport, error)
	// Forget drops the finding of a lost write: the copy was made anew, or a person trusts it.
	Forget()
}

// Findings is the result of the probes. The zero value is healthy.
type Findings struct {
	ag.Health
	Lost   string // the storage lost a write
	NoRoom string // a server would find no room for its WAL
	Space  []Space
	// Storage is what the directories with data stand on.
	Storage []storage.Volume
	Offline []string // the databases that are not online
}

// Space is the room for PostgreSQL in one directory.
type Space struct {
	Place string `json:"place"`
	Dir   string `json:"dir"`
	Free  int64  `json:"free_bytes"`
	Total int64  `json:"total_bytes"`
}

// Wellness is what a node reports about its health.
type Wellness struct {
	Ill        string           `json:"ill,omitempty"`        // the failures at the group's FAILURE_CONDITION_LEVEL
	Concern    string           `json:"concern,omitempty"`    // the failures at a higher level only
	Silent     bool             `json:"silent,omitempty"`     // its server runs, and answers no new connection
	Quarantine string           `json:"quarantine,omitempty"` // why the copy is not trusted
	StoodDown  string           `json:"stood_down,omitempty"` // when it last gave up the leadership for its health or a crash, as long as that counts
	Space      []Space          `json:"space,omitempty"`
	Storage    []storage.Volume `json:"storage,omitempty"` // what the directories with data stand on
	Offline    []string         `json:"offline,omitempty"` // the databases that are not online there
}

// wellness returns this node's health as the view has it.
func (a *Agent) wellness(v ag.View) Wellness {
	f := a.findings()
	w := Wellness{Ill: v.Group.Options.Illness(v.Local.Health), Quarantine: v.Local.Quarantine, StoodDown: v.Local.StoodDown, Space: f.Space, Storage: f.Storage, Offline: f.Offline}
	w.Silent = v.Local.Health.Unresponsive()
	if w.Ill == "" {
		w.Concern = v.Local.Health.Because
	}
	return w
}

// trouble returns what is wrong with the storage, for the judgement of the group. A state that this user may not ask,
// as that of a mirror of LVM, is no problem: nobody could end it.
func (w Wellness) trouble() (out []availability.Trouble) {
	for _, f := range storage.Findings(w.Storage) {
		if f.State != storage.Unknown {
			out = append(out, availability.Trouble{Finding: f.What, Run: f.Run})
		}
	}
	return out
}

// CrashReport is the reason why a server ended.
type CrashReport struct {
	Lost   string // an fsync failed
	NoRoom string // the disk had no room for WAL
	Panic  string // another reason for which it gave up
}

// ProbeTarget is what can be probed at the moment.
type ProbeTarget struct {
	Data      bool // a copy exists and nothing rewrites it
	Running   bool // the server runs and has answered since it was started
	PID       int
	Writable  bool
	Options   ag.Options
	Databases []string
}

// Target returns what can be probed at the moment. Any goroutine may call it.
func (a *Agent) Target() ProbeTarget {
	if t := a.target.Load(); t != nil {
		return *t
	}
	return ProbeTarget{}
}

// Damping of failovers for health and crashes: how long a stand-down counts. This
// machine's wall clock measures it, and is compared with no other clock.
const (
	crashDamped      = 10 * time.Minute
	healthDamped     = 6 * time.Hour
	loopCrashes      = 3 // in crashDamped: a crash loop
	longLived        = time.Minute
	mostBackoff      = time.Minute
	crashReportLimit = 10 * time.Second
)

// loopLimit is how long the loop may block, for instance on a dead disk, before the lease is no longer renewed.
const loopLimit = 10 * time.Second

// Turned returns the BOOTTIME of the loop's last turn, or of its beginning; 0 before that.
func (a *Agent) Turned() time.Duration { return time.Duration(a.turned.Load()) }

// turns reports whether the loop has turned lately: only a node that decides may hold a lease.
func (a *Agent) turns() bool {
	late := boottime.Now() - time.Duration(a.turned.Load())
	if late <= loopLimit {
		return true
	}
	a.log.Error("the lease is not renewed: nothing has been decided here for too long", "since", late.Round(time.Second))
	return false
}

// condition is this node's health as the loop remembers it.
type condition struct {
	stood    []marks.StandDown
	crashes  []time.Duration  // boottime
	lastEnd  string           // how the server ended last
	quick    int              // number of starts in a row after which the server did not live long
	liveFrom time.Duration    // boottime of the last start
	answered int              // pid of the server that answered
	mark     marks.Quarantine // zero: the copy is trusted
	tried    time.Duration    // boottime at which the mark was last written, or was to be
	asking   bool             // the group is being told about the quarantine
	autopsy  time.Duration    // boottime up to which a start waits for the reason of the server's end
	gone     refusal          // the source that no longer keeps the WAL which this copy needs
	noRoom   string           // logged once
	awaited  *ag.Sync         // the members that commits wait for; nil: not seen yet
	awaits   time.Duration    // boottime since which they wait for these; 0: since before this agent saw them
}

// loadCondition reads what outlives an agent.
func (a *Agent) loadCondition() error {
	var err error
	if a.cond.stood, err = a.cfg.Marks.StandDowns(); err != nil {
		return err
	}
	a.cond.mark, err = a.cfg.Marks.Quarantine()
	a.distrusted.Store(a.cond.mark.Why != "")
	return err
}

// observeHealth adds to the view what is known about this node's health, and which members are no better off.
func (a *Agent) observeHealth(v *ag.View) {
	c, pid := &a.cond, a.pid
	if a.up {
		c.answered = pid
	}
	a.target.Store(&ProbeTarget{
		Data:    (v.Local.Data == ag.DataPresent || v.Local.Server == ag.ServerWritable) && !a.busyWith("seed", "rewind"),
		Running: pid != 0 && pid == c.answered && v.Local.Server != ag.ServerDown && !a.busyWith("seed", "rewind", "hand-over", clusterTask, againTask),
		PID:     pid, Writable: v.Local.Server == ag.ServerWritable, Options: v.Group.Options, Databases: v.Group.Options.Databases,
	})
	f := a.findings()
	v.Local.Health = f.Health
	if loop := a.crashLoop(); loop != "" && (v.Local.Health.Level == 0 || v.Local.Health.Level > 3) {
		v.Local.Health.Level, v.Local.Health.Because, v.Local.Health.Restart = 3, loop, false
	}
	if f.Lost != "" {
		a.distrust(f.Lost)
	}
	if why := c.quarantine(); why != "" && (v.Local.Health.Level == 0 || v.Local.Health.Level > 3) {
		v.Local.Health.Level, v.Local.Health.Because, v.Local.Health.Restart = 3, why, false
	}
	a.noteGone(*v)
	v.Local.Quarantine, v.Local.Renew = c.quarantine(), c.renewal(v.Local.Copy)
	a.noteSeedRequests(v)
	v.Local.StoodDown = a.stoodDown(time.Now())
	v.Unfit, v.Late = a.unfit(*v), a.late(*v)
}

func (a *Agent) findings() Findings {
	if a.cfg.Probes == nil {
		return Findings{}
	}
	return a.cfg.Probes.Report()
}

// unfit returns the members that report to be no better off than an ill primary.
func (a *Agent) unfit(v ag.View) []ag.ReplicaID {
	snap := a.snapshot.Load()
	if snap == nil {
		return nil
	}
	var out []ag.ReplicaID
	for _, r := range v.Group.Replicas {
		if s, ok := snap.Statuses[r.ID]; ok && r.ID != v.Self && (s.Ill != "" || s.Quarantine != "" || s.StoodDown != "") {
			out = append(out, r.ID)
		}
	}
	return out
}

// stoodDown returns when this node last gave up the leadership, if that still counts; else "".
func (a *Agent) stoodDown(now time.Time) string {
	for _, s := range slices.Backward(a.cond.stood) {
		age := now.Sub(s.At)
		if age < 0 {
			age = 0 // the wall clock was set back
		}
		if s.Health && age < healthDamped || age < crashDamped {
			return fmt.Sprintf("%s in epoch %d: %s", s.At.UTC().Format(time.RFC3339), s.Epoch, s.Why)
		}
	}
	return ""
}

// noteStandDown records that this node released the leadership because of its own health or the end of its server.
func (a *Agent) noteStandDown(v ag.View, p ag.Plan) {
	crash := p.Rule == ag.RuleRelease && v.Record.Epoch.Phase == ag.PhaseLead
	if p.Rule != ag.RuleStepDown && !crash {
		return
	}
	s := marks.StandDown{At: time.Now(), Health: p.Rule == ag.RuleStepDown, Epoch: v.Record.Epoch.Epoch, Why: p.Because}
	a.cond.stood = append(a.cond.stood, s)
	a.cond.stood = a.cond.stood[max(0, len(a.cond.stood)-marks.StandDownsKept):]
	kept := slices.Clone(a.cond.stood)
	a.writeLater(func() error { return a.cfg.Marks.SetStandDowns(kept) })
}

// serverEnded records an end of the server that this node did not ask for.
func (a *Agent) serverEnded(ctx context.Context, why string) {
	c := &a.cond
	if orderly(why) || a.fencing || a.task.Load() != nil && !a.busyWith("sync", "start") {
		c.quick = 0
		return
	}
	now := boottime.Now()
	c.lastEnd = why
	c.crashes = append(c.crashes, now)
	c.crashes = c.crashes[max(0, len(c.crashes)-10):]
	if now-c.liveFrom < longLived {
		c.quick++
	} else {
		c.quick = 0
	}
	if a.cfg.Probes == nil {
		return
	}
	c.autopsy = now + crashReportLimit
	a.children.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, crashReportLimit)
		defer cancel()
		found, err := a.cfg.Probes.CrashReport(ctx)
		if err != nil {
			a.log.Debug("the server's log was not read", "err", err)
		}
		select {
		case a.crashReports <- found:
		case <-ctx.Done():
		}
	})
}

// lastWords reads, when the agent begins, why a server ended while no agent ran. A lost write still counts.
func (a *Agent) lastWords(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, crashReportLimit)
	defer cancel()
	var found CrashReport
	if ks, err := a.cfg.Keeper.Status(ctx); err == nil && ks.ServerPID == 0 {
		if found, err = a.cfg.Probes.CrashReport(ctx); err != nil {
			found = CrashReport{}
		}
	}
	select {
	case a.crashReports <- CrashReport{Lost: found.Lost}:
	case <-ctx.Done():
	}
}

// orderly reports whether an end of the server was asked for: see Keeper.Exits.
func orderly(why string) bool {
	return strings.HasPrefix(why, "fenced") || why == "exit status 0" || why == "stopped"
}

func (a *Agent) noteCrash(found CrashReport) {
	a.cond.autopsy = 0
	switch {
	case found.Lost != "":
		a.log.Error("the server ended because the storage lost a write", "said", found.Lost)
		a.distrust("its server ended with " + found.Lost)
	case found.NoRoom != "":
		a.log.Error("the server ended because there was no room for its WAL", "said", found.NoRoom)
		a.cond.lastEnd = found.NoRoom
	case found.Panic != "":
		a.log.Error("the server gave up", "said", found.Panic)
		a.cond.lastEnd = found.Panic
	}
}

// crashLoop returns a description while the server keeps ending; else "".
func (a *Agent) crashLoop() string {
	c := &a.cond
	now := boottime.Now()
	c.crashes = slices.DeleteFunc(c.crashes, func(at time.Duration) bool { return now-at > crashDamped })
	if len(c.crashes) < loopCrashes {
		return ""
	}
	return fmt.Sprintf("PostgreSQL has ended by itself %d times within %v, last with: %s", len(c.crashes), crashDamped, c.lastEnd)
}

// backoff returns how long to wait before the next start. It grows with each server that did not live long. The leader
// of the record waits no longer than half its patience, because the others would take the silence for its death.
func (a *Agent) backoff() time.Duration {
	d, most := startBackoff, mostBackoff
	if v := a.view.Load(); v != nil && v.Record.Epoch.Leader == v.Self {
		most = max(startBackoff, v.Patience()/2)
	}
	for range min(a.cond.quick, 6) {
		d *= 2
	}
	return min(d, most)
}

// mayStart reports whether a server may be started: one that would find no room for its WAL could only fail.
func (a *Agent) mayStart() bool {
	if why := a.findings().NoRoom; why != "" {
		if a.cond.noRoom != why {
			a.log.Error("server not started", "because", why)
		}
		a.cond.noRoom = why
		a.showProgress("not started: " + why)
		return false
	}
	if a.cond.noRoom != "" {
		a.log.Info("there is room again")
		a.cond.noRoom = ""
		a.progress.Store(nil)
	}
	return true
}

// distrust puts the present copy under quarantine: its storage reported that a write was lost.
func (a *Agent) distrust(why string) {
	c := &a.cond
	if c.mark.Why != "" {
		return
	}
	id := ag.CopyID("")
	if v := a.view.Load(); v != nil {
		id = v.Local.Copy
	} else if held, err := a.cfg.Marks.Copy(); err == nil { // this agent may not act yet
		id = held.Copy
	}
	c.mark = marks.Quarantine{Copy: id, Why: why, At: time.Now()}
	a.distrusted.Store(true)
	a.log.Error("this copy is under quarantine", "because", why)
	a.saveQuarantine()
}

// unpromotable reports whether this copy, even with the longest log, must not be promoted: it is under quarantine, or
// its server would find no room for WAL. The answer to a candidate's seal request says so. Any goroutine may call it.
func (a *Agent) unpromotable() bool { return a.distrusted.Load() || a.findings().NoRoom != "" }

// quarantine returns why the copy is not trusted; once an operator has resumed it, renewal returns why it must be made
// anew instead.
func (c *condition) quarantine() string {
	if c.mark.Renew {
		return ""
	}
	return c.mark.Why
}

func (c *condition) renewal(now ag.CopyID) string {
	if c.mark.Renew && (now == "" || now == c.mark.Copy) {
		return "it was under quarantine (" + c.mark.Why + ") and has been resumed"
	}
	if c.gone.copy != "" && now == c.gone.copy {
		return fmt.Sprintf("%s no longer keeps the WAL that this copy needs: it was away for longer than slots keep WAL", c.gone.source)
	}
	return ""
}

// noteSeedRequests adds what operators request. A copy is given up for a better one only while a leader exists that can
// provide it. Until then this copy may have to lead.
func (a *Agent) noteSeedRequests(v *ag.View) {
	e := v.Record.Epoch
	if a.cfg.SeedRequests == nil || e.Leader == v.Self {
		return
	}
	if v.Local.Renew == "" && e.Phase == ag.PhaseLead && slices.Contains(v.Reach, e.Leader) {
		v.Local.Renew = a.cfg.SeedRequests.ReseedReason(v.Local.Copy)
	}
	v.Local.Withheld = a.cfg.SeedRequests.BlockedReason(e.Epoch)
}

// noteGone remembers, as long as the source leads, that the source no longer has the WAL which this copy needs.
func (a *Agent) noteGone(v ag.View) {
	c, e := &a.cond, v.Record.Epoch
	if up := a.cfg.Upstream.Status(); up.Gone && up.At > a.repairedAt {
		c.gone = refusal{v.Local.Copy, up.Source, up.Epoch}
	}
	if c.gone.source != e.Leader || c.gone.epoch != e.Epoch {
		c.gone = refusal{}
	}
}

// keepQuarantine tells the group that this copy must not be counted on, by suspending it as an operator would. When an
// operator has resumed it, the copy is made anew; when that is done, the quarantine is over.
func (a *Agent) keepQuarantine(ctx context.Context, v ag.View) {
	c := &a.cond
	select {
	case <-a.suspended:
		c.asking = false
	default:
	}
	if w := a.quarantined.Load(); c.mark.Why != "" && (w == nil || *w != c.mark) && boottime.Now()-c.tried >= markAgain {
		a.saveQuarantine() // the disk that lost a write did not take the mark, either
	}
	me, ok := v.Group.Replica(v.Self)
	switch {
	case c.mark.Why == "" || !v.Quorum || !ok:
	case c.mark.Renew && v.Local.Copy != "" && c.mark.Copy != v.Local.Copy:
		a.log.Info("the copy was made anew; the quarantine is over", "was", c.mark.Why)
		a.endQuarantine()
	case c.mark.Renew:
	case c.mark.Suspended && !me.Suspended:
		a.log.Warn("resumed: the copy that is under quarantine is to be made anew", "because", c.mark.Why)
		c.mark.Renew = true
		a.saveQuarantine()
	case !c.mark.Suspended && me.Suspended:
		c.mark.Suspended = true
		a.saveQuarantine()
	case !me.Suspended && !c.asking && a.cfg.Suspend != nil:
		c.asking = true
		a.children.Go(func() { a.askToSuspend(ctx) })
	}
}

func (a *Agent) askToSuspend(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := a.cfg.Suspend(ctx); err != nil {
		a.log.Warn("the group was not told of the quarantine yet", "err", err)
		_ = retry.Sleep(ctx, time.Second)
	}
	a.suspended <- struct{}{} // there is room: only one goroutine asks at a time
	a.Wake()
}
