package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/lib/storage"
)

// Status is what a node reports about itself to the group.
type Status struct {
	Epoch    ag.Epoch       `json:"epoch"`
	Rule     ag.Rule        `json:"rule"`
	Because  string         `json:"because"`
	Role     ag.Role        `json:"role"`
	Data     ag.DataState   `json:"data"`
	Server   ag.ServerState `json:"server"`
	Copy     ag.CopyID      `json:"copy,omitempty"`
	Position ag.Position    `json:"position"`
	// Former is how far copies were that this node held before the present one, as it last reported: those that the
	// record still counts. One may come back, as from a snapshot of the whole node.
	Former   map[ag.CopyID]ag.Position `json:"former,omitempty"`
	Readable bool                      `json:"readable"`           // takes read-only sessions as a secondary
	Open     bool                      `json:"open"`               // takes writes
	Leads    time.Time                 `json:"leads,omitzero"`     // as primary: since when it leads Epoch; zero: it is not known
	Stream   bool                      `json:"streaming"`          // a WAL stream from the leader is open
	Busy     string                    `json:"busy,omitempty"`     // the long action under way
	Progress string                    `json:"progress,omitempty"` // of that action
	Late     bool                      `json:"late,omitempty"`     // it has long to replay
	Members  []ag.Member               `json:"members,omitempty"`  // as primary: members whose stream is open
	Flushed  map[ag.ReplicaID]ag.LSN   `json:"flushed,omitempty"`
	SyncP    []ag.ReplicaID            `json:"sync_members,omitempty"`
	SyncN    int                       `json:"sync_count"`
	Config   int64                     `json:"config_revision"`     // of the configuration on which this node acts
	HandOver *Outcome                  `json:"hand_over,omitempty"` // of the last planned failover that this node had to carry out

	Mute  []ag.ReplicaID    `json:"mute,omitempty"`      // as primary: members whose stream is open and that do not acknowledge
	Waits time.Duration     `json:"waits_ns,omitempty"`  // as primary: how long commits have waited for acknowledgements that do not come; 0: they do not
	Why   string            `json:"waits_why,omitempty"` // and why
	Sees  []ag.ReplicaID    `json:"sees"`                // the other members that answer this node
	Relay [][2]ag.ReplicaID `json:"relays,omitempty"`    // the pairs of members whose connections it relays

	Wellness

	NoVote      string        `json:"no_vote,omitempty"`     // why its vote in the quorum is not cast; "": it is, or it has none
	NoLogins    []string      `json:"no_logins,omitempty"`   // why its listener refuses clients that the configuration would admit
	Unserved    []string      `json:"unserved,omitempty"`    // why the group's listener is not served there where it should be
	Incarnation string        `json:"incarnation,omitempty"` // of the agent that reports
	Place       string        `json:"place,omitempty"`       // Config.Place
	Beat        uint64        `json:"beat,omitempty"`        // how many statuses that agent has published
	Fence       time.Duration `json:"fence,omitempty"`       // how long its host takes to fence a server; 0: not measured

	Copying json.RawMessage `json:"copying,omitempty"` // Config.Copying
}

// reasonText bounds each text of Status.NoLogins and Status.Unserved, in bytes.
const reasonText = 400

// reasons returns what of says, nil: nothing, in texts of bounded length: a file of rules may be wrong in many lines.
func reasons(of func() []string) (out []string) {
	if of == nil {
		return nil
	}
	for _, why := range of() {
		out = append(out, strings.ToValidUTF8(why[:min(len(why), reasonText)], ""))
	}
	return out
}

// Key identifies what is worth publishing at once. Two statuses with one key differ only in positions and progress.
func (s Status) Key() string {
	key := fmt.Sprint(s.Epoch, s.Rule, s.Role, s.Data, s.Server, s.Copy, s.Readable, s.Open, s.Stream, s.Busy, s.Members, s.SyncP, s.SyncN, s.Config)
	key += fmt.Sprint(s.Ill != "", s.Offline, s.Silent, s.Concern != "", s.Quarantine, s.StoodDown, s.NoVote != "", s.NoLogins, s.Unserved, s.Copying != nil, s.Mute, s.Why != "", s.Sees, s.Relay, s.storageStates())
	if s.HandOver != nil {
		key += s.HandOver.Op
	}
	if s.Busy == "hand-over" || s.Busy == "promote" || s.Busy == "" { // steps that a person watches; the percentages of a copy can wait
		key += s.Progress
	}
	return key
}

// waits returns for how long commits have waited for members that are silent for so long: not longer than they wait for
// them at all. Before a change of the setting, commits were acknowledged without them.
func (c *condition) waits(now ag.Sync, silent, at time.Duration) time.Duration {
	if c.awaited != nil && (c.awaited.N != now.N || !slices.Equal(c.awaited.P, now.P)) {
		c.awaits = at
	}
	c.awaited = &ag.Sync{P: slices.Clone(now.P), N: now.N}
	if c.awaits == 0 {
		return silent
	}
	return min(silent, at-c.awaits)
}

func (a *Agent) status(v ag.View, p ag.Plan) Status {
	s := Status{
		Incarnation: a.cfg.Incarnation, Place: a.cfg.Place, Epoch: v.Record.Epoch.Epoch, Rule: p.Rule, Because: p.Because, Role: v.Role(), Data: v.Local.Data, Server: v.Local.Server,
		Copy: v.Local.Copy, Position: v.Local.Position, Open: p.Open && !a.isShut(), Busy: v.Busy,
	}
	if pr := a.progress.Load(); pr != nil {
		s.Progress = *pr
	}
	if said := v.Outgoing(); said != "" && s.Progress == "" {
		s.Progress = said
	}
	s.HandOver = a.outcome.Load()
	if a.cfg.NoVote != nil {
		s.NoVote = a.cfg.NoVote()
	}
	s.NoLogins, s.Unserved = reasons(a.cfg.NoLogins), reasons(a.cfg.Unserved)
	if a.cfg.Copying != nil {
		s.Copying = a.cfg.Copying()
	}
	if snap := a.snapshot.Load(); snap != nil {
		s.Config = snap.GroupRev
		a.keepPast(&s, snap.Statuses[v.Self], v.Record)
	}
	s.Sees = append([]ag.ReplicaID{}, v.Reach...)
	if a.cfg.Relays != nil {
		s.Relay = a.cfg.Relays()
	}
	if a.cfg.Instance == nil {
		return s
	}
	s.Wellness, s.Fence = a.wellness(v), a.cfg.Fence
	s.Readable, s.Late = v.Readable() && !a.releasing(&v), v.Local.Late
	s.Stream = a.cfg.Upstream.Status().Connected && v.Local.Server == ag.ServerRecovery
	if v.Local.Server == ag.ServerWritable {
		s.Leads = a.history.LeadsSince(s.Epoch)
		s.SyncP, s.SyncN = v.Local.Sync.P, v.Local.Sync.N
		s.Waits, s.Why = v.CommitsWait()
		s.Waits = a.cond.waits(v.Local.Sync, s.Waits, boottime.Now())
		s.Flushed = map[ag.ReplicaID]ag.LSN{}
		for _, st := range v.Streams {
			if st.Open {
				if st.Silent >= ag.FeedbackTimeout {
					s.Mute = append(s.Mute, st.Member)
				}
				s.Members = append(s.Members, ag.Member{ID: st.Member, Copy: st.Copy})
				s.Flushed[st.Member] = st.Flush
			}
		}
	}
	return s
}

// Known returns what this node knows of the group, for its judgement. Before the first turn it knows nothing.
func (a *Agent) Known() availability.Facts {
	v, snap := a.View(), a.Snapshot()
	if v == nil {
		return availability.Facts{}
	}
	if snap == nil { // nothing was read yet that is to be believed
		snap = &Snapshot{}
	}
	f := availability.Facts{View: *v, Members: map[ag.ReplicaID]availability.Member{}}
	if r := a.routes.Load(); r != nil {
		f.Routes = r
		// a primary that died has said that it is open
		f.Open = r.WriteOpen && r.Primary == v.Record.Epoch.Leader && (r.Primary == v.Self || slices.Contains(v.Reach, r.Primary))
	}
	for _, r := range v.Group.Replicas {
		m := snap.Statuses[r.ID].member()
		if heard := a.Heard(r.ID); r.ID != v.Self && !heard.IsZero() {
			m.Silent = time.Since(heard)
		}
		f.Members[r.ID] = m
	}
	if own := a.own.Load(); own != nil {
		f.Members[v.Self] = own.member()
	}
	return f
}

// Own returns what this node had to report at its last turn, published or not; nil before the first.
func (a *Agent) Own() *Status { return a.own.Load() }

// member returns what the judgement of the group needs of a status.
func (s Status) member() availability.Member {
	m := availability.Member{
		Copy: s.Copy, Data: s.Data, Server: s.Server, Position: s.Position, Sync: ag.Sync{P: s.SyncP, N: s.SyncN}, Waits: s.Waits, WaitsWhy: s.Why,
		Sees: s.Sees, Relays: s.Relay, Ill: s.Ill, Offline: s.Offline, Quarantine: s.Quarantine, NoVote: s.NoVote, NoLogins: s.NoLogins, Unserved: s.Unserved, Busy: s.Busy, Progress: s.Progress,
		Storage: s.trouble(),
	}
	for _, x := range s.Members {
		if !slices.Contains(s.Mute, x.ID) {
			m.Streams = append(m.Streams, x.ID)
		}
	}
	return m
}

// Transitions returns how often each rule fired, since the agent started, where another one had fired before.
func (a *Agent) Transitions() map[ag.Rule]uint64 { return a.history.Transitions() }

// Failovers returns the changes of the leadership that this node saw since the agent started.
func (a *Agent) Failovers() decisions.Failovers { return a.history.Failovers() }

// Decisions returns the last decisions, oldest first.
func (a *Agent) Decisions() []decisions.Decision { return a.history.Kept() }

// Uptime returns how long the agent has run.
func (a *Agent) Uptime() time.Duration { return boottime.Now() - a.startedAt }

func sameGroup(x, y ag.Group) bool {
	return reflect.DeepEqual(x, y)
}

// endOp publishes the result of a request, then removes the request. The client that asked waits for both.
func (a *Agent) endOp(rev int64, o Outcome) {
	a.closing.Store(true)
	a.outcome.Store(&o)
	fault.Point("handover.unclosed") // the outcome is known here; the request is still in the record
	if o.Error != "" {
		a.log.Warn("the failover that was asked for has ended", "err", o.Error)
	}
	a.Wake()
	a.closeOp(rev)
}

// refuseForced ends a request to force the leadership on this node which it cannot carry out now.
func (a *Agent) refuseForced(v ag.View) {
	why := v.Unforceable()
	if why == "" {
		return
	}
	if o := a.outcome.Load(); o != nil && o.Op == v.Op.ID {
		a.closeAgain(v.Op)
		return
	}
	o, rev := Outcome{Op: v.Op.ID, Error: why, Refused: true}, a.snapshot.Load().OpRev
	a.outcome.Store(&o) // the next turn does not begin it again
	a.children.Go(func() { a.endOp(rev, o) })
}

// closeAgain removes a request whose result is known and that was not removed in time, as while the quorum did not
// answer: while it stands, no other failover can be asked for. The loop calls it.
func (a *Agent) closeAgain(op ag.Op) {
	if o := a.outcome.Load(); o == nil || o.Op != op.ID || !a.closing.CompareAndSwap(false, true) {
		return
	}
	rev := a.snapshot.Load().OpRev
	a.children.Go(func() { a.closeOp(rev) })
}

func (a *Agent) closeOp(rev int64) {
	defer a.closing.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), commitBudget)
	defer cancel()
	for {
		err := a.cfg.Store.CloseOp(ctx, rev)
		if err == nil || errors.Is(err, ErrConflict) { // ErrConflict: there is another request by now
			return
		}
		if ctx.Err() != nil {
			a.log.Warn("the request was not closed", "err", err)
			return
		}
		_ = retry.Sleep(ctx, 50*time.Millisecond)
	}
}

// publish gives the listener its routes, and ends the sessions that may not continue.
func (a *Agent) publish(_ context.Context, v ag.View, p ag.Plan) {
	if p.Open {
		a.restart = 0
		a.answered.Store(uint64(v.Record.Epoch.Epoch))
	}
	if p.Open && a.opened != v.Record.Epoch.Epoch {
		a.opened = v.Record.Epoch.Epoch
		a.log.Info("open for writes", "epoch", a.opened)
	}
	r := a.makeRoutes(v, p)
	old := a.routes.Load()
	assert.That(epochOf(old) <= r.Epoch, "routes of epoch %d after those of epoch %d", r.Epoch, epochOf(old))
	assert.That(r.Primary != v.Self || !r.WriteOpen || a.answered.Load() == uint64(v.Lease.Epoch) && v.Lease.Epoch == r.Epoch,
		"writes are sent here in epoch %d, under a lease of epoch %d", r.Epoch, v.Lease.Epoch)
	defer a.endReaders(v) // AFTER the routes say that no reader comes here
	if old != nil && sameRoutes(old, r) {
		return
	}
	a.routes.Store(r)
	a.cfg.Sessions.Publish(r)
	if old != nil && old.Primary == v.Self && r.Primary != v.Self {
		a.cfg.Sessions.CloseLocal("this node is not the primary any more")
	}
	if r.Promoting && (old == nil || !old.Promoting) {
		a.cfg.Sessions.CloseReaders(chosenToLead)
	}
	if old != nil && old.Primary != v.Self && r.Primary == v.Self {
		a.cfg.Sessions.CloseReaders("this replica has become the primary; the readers' place is on a secondary")
	}
	if old != nil && old.Epoch != r.Epoch {
		a.cfg.Sessions.CloseOlder(r.Epoch, "the primary has changed")
	}
}

// chosenToLead is why a replica that is being promoted has no readers.
const chosenToLead = "this replica was chosen to lead; the readers' place is on a secondary"

// endReaders ends this node's readers once its copy may not be read any more. While it is promoted, its own timeline is
// not in the group's history yet, and nothing is wrong with it.
func (a *Agent) endReaders(v ag.View) {
	why := v.Unreadable()
	if why != "" && !a.unread && v.Local.Server == ag.ServerRecovery {
		if a.routes.Load().Promoting {
			why = chosenToLead
			a.log.Info("readers are ended", "because", why)
		} else {
			a.log.Warn("readers are ended", "because", why)
		}
		a.cfg.Sessions.CloseReaders(why)
	}
	a.unread = why != "" && v.Local.Server == ag.ServerRecovery
}

// epochOf returns the epoch of routes; 0 if there are none.
func epochOf(r *ag.Routes) ag.Epoch {
	if r == nil {
		return 0
	}
	return r.Epoch
}

// publishClosed takes the primary out of this node's routes at once.
func (a *Agent) publishClosed(why string) {
	old := a.routes.Load()
	if old == nil {
		return
	}
	r := *old
	r.Primary, r.WriteOpen = "", false
	a.routes.Store(&r)
	a.cfg.Sessions.Publish(&r)
	a.cfg.Sessions.CloseLocal(why)
}

func (a *Agent) makeRoutes(v ag.View, p ag.Plan) *ag.Routes {
	e := v.Record.Epoch
	r := &ag.Routes{Epoch: e.Epoch, Self: v.Self, Lossless: ag.LosslessSince(a.routes.Load(), e), Timelines: v.Record.LeadTimelines()}
	r.Promoting = e.Leader == v.Self && e.Phase != ag.PhaseSeal && a.answered.Load() != uint64(e.Epoch)
	statuses := map[ag.ReplicaID]Status{}
	if s := a.snapshot.Load(); s != nil {
		statuses = s.Statuses
	}
	for _, rep := range v.Group.Replicas {
		if !rep.HasData() {
			continue
		}
		st := statuses[rep.ID]
		t := ag.Target{ID: rep.ID, Local: rep.ID == v.Self, Healthy: rep.ID == v.Self || slices.Contains(v.Reach, rep.ID)}
		if t.Local {
			t.Readable = v.Readable()
			t.Healthy = t.Readable || v.Local.Server == ag.ServerWritable
		} else {
			t.Readable = st.Readable
		}
		t.Readable = t.Readable && !(t.Local && (r.Promoting || a.releasing(&v))) && rep.Allow != ag.AllowNo && !rep.Suspended && rep.Options.Maintenance == nil
		r.Targets = append(r.Targets, t)
	}
	if e.Phase == ag.PhaseLead {
		if e.Leader == v.Self {
			r.WriteOpen = p.Open && !a.isShut()
			r.Primary = v.Self
			if v.Local.Server != ag.ServerWritable || !v.Lease.Valid {
				r.Primary, r.WriteOpen = "", false
			}
		} else if st := statuses[e.Leader]; st.Open && st.Epoch == e.Epoch {
			r.Primary, r.WriteOpen = e.Leader, true
		}
	}
	r.ReadList = v.Group.ReadList(e.Leader)
	return r
}

func sameRoutes(x, y *ag.Routes) bool {
	return x.Epoch == y.Epoch && x.Lossless == y.Lossless && x.Self == y.Self && x.Primary == y.Primary && x.WriteOpen == y.WriteOpen && x.Promoting == y.Promoting &&
		slices.Equal(x.Targets, y.Targets) && slices.Equal(x.Timelines, y.Timelines) && slices.EqualFunc(x.ReadList, y.ReadList, slices.Equal[[]ag.ReplicaID])
}

// statusEvery is how often a status without news is published: it carries the positions to which slots are advanced.
const statusEvery = 5 * time.Second

// report publishes this node's status: at once if it contains news, else as a sign of life.
func (a *Agent) report(ctx context.Context, v ag.View, p ag.Plan) {
	s := a.status(v, p)
	a.own.Store(&s)
	key := s.Key()
	now := boottime.Now()
	if !v.Quorum || key == a.statusWas && now-a.statusAt < statusEvery {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, v.Profile.Request)
	defer cancel()
	a.beat++
	s.Beat = a.beat
	if err := a.cfg.Store.PutStatus(ctx, v.Self, s); err != nil {
		a.log.Debug("status not published", "err", err)
		return
	}
	a.statusAt, a.statusWas = now, key
}

func (a *Agent) showProgress(s string) { a.progress.Store(&s) }

// storageStates has the states of the volumes. They are worth publishing when they change; counts of errors are not.
func (w Wellness) storageStates() (out []storage.State) {
	for _, v := range w.Storage {
		out = append(out, v.State)
	}
	return out
}
