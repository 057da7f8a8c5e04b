package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent/decisions"
	"github.com/coteriedb/coterie/internal/agent/lease"
	"github.com/coteriedb/coterie/internal/agent/liveness"
	"github.com/coteriedb/coterie/internal/agent/marks"
	"github.com/coteriedb/coterie/internal/agent/preset"
	"github.com/coteriedb/coterie/internal/agent/recordguard"
	"github.com/coteriedb/coterie/internal/lib/assert"
	"github.com/coteriedb/coterie/internal/lib/asyncwriter"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Config is everything that an agent depends on. All fields are required, with two exceptions. A witness has no
// Instance, Keeper, Upstream, Downstream and Seeder. SeedRequests, Probes and Suspend may be nil.
type Config struct {
	Self        ag.ReplicaID
	Incarnation string
	// Place identifies the node directory on a running machine. Two agents with one Place never run at the same time:
	// the lock of the directory sees to that. A copy of the directory is another place.
	Place      string
	Marks      *marks.Marks
	Store      Store
	Instance   Instance
	Keeper     Keeper
	Upstream   Upstream
	Downstream Downstream
	Peers      Peers
	Sessions   Sessions
	Seeder     Seeder
	// SeedRequests are the requests of operators for a new copy here; nil: there are none.
	SeedRequests SeedRequests
	Logger       *slog.Logger
	// OnGroup is called by the loop with each new configuration of the group, BEFORE a decision rests on it.
	OnGroup func(ag.Group)
	// Probes watches the server and its disks; nil: the node always counts as healthy.
	Probes Probes
	// Fence is how long this host takes to fence a server; 0: not measured. The group's profile must allow for it.
	Fence time.Duration
	// NoVote returns why this node does not cast its vote in the quorum although it has one; "": it does, or has none.
	// NoLogins returns which clients are refused and why, Unserved why the listener is not served here. All may be nil.
	NoVote             func() string
	NoLogins, Unserved func() []string
	// Relays returns the pairs of members whose connections this node relays. nil: it relays none.
	Relays func() [][2]ag.ReplicaID
	// Copying describes the copy to this node that is under way or is to continue, for the node that asked for it.
	// Other nodes show it while this node does not answer. The agent passes it on unchanged; nil, or JSON of nothing:
	// there is none. It must answer from memory.
	Copying func() json.RawMessage
	// Suspend suspends this node's data movement in the group's configuration, as an operator would. nil: the group is
	// not told.
	Suspend func(context.Context) error
	// Remembered returns the configuration that this node saw last, also before it has read one since its start. It may
	// return nil. Its members are asked for signs of life until the record is read, and nothing is decided by it.
	Remembered func() *ag.Group
}

// Agent runs one node. Make it with New, run it with Run.
type Agent struct {
	cfg        Config
	log        *slog.Logger
	lease      *lease.Lease
	answers    *lease.Answers
	seal       *sealer
	voter      *liveness.Voter
	heartbeats *liveness.Heartbeater
	pinger     *liveness.Pinger
	wake       chan struct{}

	// Published by the loop for others to read.
	snapshot atomic.Pointer[Snapshot]
	view     atomic.Pointer[ag.View]
	plan     atomic.Pointer[ag.Plan]
	routes   atomic.Pointer[ag.Routes]
	own      atomic.Pointer[Status] // of the last turn, published or not
	progress atomic.Pointer[string] // of the worker's action
	history  *decisions.Log
	target   atomic.Pointer[ProbeTarget]
	writer   *asyncwriter.Queue // marks and decisions, off the loop
	trust    chan chan<- string // an operator confirms that the copy may be trusted
	turned   atomic.Int64       // boottime of the loop's last turn
	renewal  atomic.Int64       // seenAt, for the voter
	damped   atomic.Int64       // boottime until which the silence of a leader must be longer to be unusual
	// suspected counts the findings of walsenders that are no member's; cleared is its value when the setting was last
	// proven. No answer leaves while they differ.
	suspected, cleared atomic.Uint64
	answered           atomic.Uint64 // the epoch in which this node has opened, so that its answers may leave; 0: none
	outcome            atomic.Pointer[Outcome]
	closing            atomic.Bool // the request that ended so is being removed
	guard              *recordguard.Guard
	preset             *preset.Preset
	readers            departure
	violation          atomic.Pointer[error] // of the first assertion that did not hold; nil: all did
	task               atomic.Pointer[task]  // the one long action under way; nil: none

	// Owned by the loop.
	serving
	running
	seen       ag.Revisions
	seenAt     time.Duration
	unheard    ag.Evidence // the last leader that was deposed for its silence and is alive
	observed   Observation
	up         bool          // the server answered in this turn
	upAt       time.Duration // boottime of its last answer
	generation uint64
	stuck      stuck
	seals      map[ag.ReplicaID]ag.SealReport
	sealing    map[ag.ReplicaID]ag.Epoch // asked, not answered yet
	epochSeen  ag.Epoch                  // the epoch of the record
	epochAt    time.Duration             // boottime at which it was first seen
	unsealed   map[ag.ReplicaID]unsealed // refused or did not answer
	sealedAt   time.Duration
	opened     ag.Epoch
	prep       preparation
	prepared   chan preparation
	restarts   chan restartRequest

	serverRestarts chan serverRequest
	switches       chan switchRequest

	noRewind   ag.CopyID
	rewoundIn  ag.Epoch                 // the epoch of the last successful rewind; if the source refuses the copy again in it, the copy is made anew
	repairedAt time.Duration            // boottime of the last rewind or seeding; earlier refusals do not count
	leading    *leadership              // nil: this node does not lead
	unread     bool                     // the server is in recovery, and its copy may not be read: its readers were ended
	feeding    *feeding                 // nil: no candidate may stream from here
	failed     map[string]time.Duration // boottime before which the action of that name is not tried again
	reports    chan sealAnswer
	done       chan taskResult
	children   sync.WaitGroup
	statusAt   time.Duration
	statusWas  string
	startedAt  time.Duration
	startRetry time.Duration
	answeredAt time.Duration // boottime of the server's last answer while it was to be promoted

	admitted bool          // this agent acts under its name; see comeIn
	lastSaid Status        // what an agent in another place last reported under this name
	saidAt   time.Duration // boottime of that
	beat     uint64        // number of statuses published
	rewrite  bool          // the setting is put before PostgreSQL again: another program wrote one that is not in force yet
	reproved uint64        // the value of suspected for which the proof of the setting was dropped
	voided   uint64        // how often the proof of the setting was voided: one under way counts only if this has not changed
	refusal  refusal       // the last refusal

	cond         condition
	distrusted   atomic.Bool                      // the copy is under quarantine
	quarantined  atomic.Pointer[marks.Quarantine] // the mark on disk
	checked      atomic.Bool                      // the copy was checked: it is as far as the group last saw it
	away         bool                             // the data directory does not hold this node's copy, and no repair is under way
	past         pastCopy
	seenSelf     bool // this agent has read back what it published
	crashReports chan CrashReport
	suspended    chan struct{}
	acknowledged chan struct{} // the last view is one in which walsenders are watched
	pid          int           // of the postmaster; 0: none
}

// serving is the state of a server that leads: it begins anew whenever the server has ended, unless a hand-over may
// start it again in the same epoch.
type serving struct {
	sync     ag.Sync
	tried    *ag.Sync // a setting that may be in force too; nil: none
	restart  ag.LSN   // not 0: the server was restarted in this epoch, and its WAL ended here
	attached bool     // the previous agent left the server running, and its setting is not proven yet
}

// running is the state of the server that the keeper runs, whatever its role. It begins anew once no process of that
// server is left.
type running struct {
	endOfRec  ag.LSN             // of its promotion
	timelines []ag.TimelineEntry // of its promotion
	xids      ag.Xids            // of its promotion
	fencing   bool               // it is to be fenced, and that is not confirmed yet
}

// streamFacts is what is known about a member's stream, also after its end.
type streamFacts struct {
	open     bool
	session  uint64
	copy     ag.CopyID
	flush    ag.LSN
	apply    ag.LSN
	feedback time.Duration // boottime of the last sign of life
}

// New returns an agent that does nothing until Run.
func New(c Config) (*Agent, error) {
	a := &Agent{
		cfg: c, log: c.Logger, wake: make(chan struct{}, 1), reports: make(chan sealAnswer, 16), done: make(chan taskResult, 1),
		prepared: make(chan preparation, 1), restarts: make(chan restartRequest), serverRestarts: make(chan serverRequest), switches: make(chan switchRequest),
		guard: recordguard.New(marks.Seen{}),
		seals: map[ag.ReplicaID]ag.SealReport{}, sealing: map[ag.ReplicaID]ag.Epoch{}, unsealed: map[ag.ReplicaID]unsealed{},
		failed: map[string]time.Duration{}, history: decisions.NewLog(), writer: asyncwriter.NewQueue(writerQueue),
		trust: make(chan chan<- string), crashReports: make(chan CrashReport, 4), suspended: make(chan struct{}, 1), acknowledged: make(chan struct{}, 1),
		past: pastCopy{held: make(chan heldWAL, 1)},
	}
	if c.Store == nil || c.Peers == nil || c.Sessions == nil || c.Marks == nil {
		return nil, errors.New("agent: Store, Peers, Sessions and Marks are required")
	}
	a.answers = lease.NewAnswers(c.Self, c.Sessions.GateMoved)
	a.lease = lease.New(lease.Config{
		Store: c.Store, Keeper: c.Keeper, Profile: a.profile, Log: c.Logger, Answers: a.answers,
		Changed: a.Wake, Moved: c.Sessions.GateMoved, Alive: a.turns,
	})
	a.voter = liveness.NewVoter(c.Peers.Probe, a.Wake, c.Logger)
	a.heartbeats = liveness.NewHeartbeater(liveness.HeartbeatConfig{
		Incarnation: c.Incarnation, Dial: c.Peers.Heartbeats, Acknowledged: a.answers.Acknowledged, Profile: a.profile, Log: c.Logger,
	})
	a.pinger = liveness.NewPinger(liveness.PingConfig{Ping: a.ping, Members: a.others, Beats: a.voter.Beats, Profile: a.profile, Changed: a.Wake}, a.heartbeats)
	a.seal = &sealer{
		self: c.Self, marks: c.Marks, instance: c.Instance, keeper: c.Keeper, upstream: c.Upstream, lease: a.lease,
		log: c.Logger, guard: a.guard, turn: make(chan struct{}, 1), distrusted: a.unpromotable, checked: a.checked.Load,
	}
	a.seal.turn <- struct{}{}
	a.preset = a.presets()
	a.seenNow()
	return a, nil
}

// writerQueue is how many writes may wait for the disk.
const writerQueue = 256

// writeLater performs a best-effort write off the loop: a hung disk must not stop decisions. A job that does not fit
// into the queue is not written.
func (a *Agent) writeLater(job func() error) {
	queued := a.writer.Do(func() {
		if err := job(); err != nil {
			a.log.Warn("not written down", "err", err)
		}
	})
	if !queued {
		a.log.Warn("not written down: the disk does not keep up")
	}
}

// Wake makes the loop observe and decide again at once. Any goroutine may call it; it never blocks.
func (a *Agent) Wake() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Seal answers a candidate's request; the endpoint calls it.
func (a *Agent) Seal(ctx context.Context, req SealRequest) (ag.SealReport, error) {
	if a.cfg.Instance == nil {
		return ag.SealReport{}, errors.New("a witness holds no data to seal")
	}
	defer a.Wake()
	var r ag.SealReport
	err := assert.Guard(func() (err error) {
		r, err = a.seal.Seal(ctx, req)
		return err
	})
	if assert.Violated(err) {
		a.violated(err)
	}
	return r, err
}

// Position returns how far this node's copy is; the endpoint calls it.
func (a *Agent) Position(ctx context.Context) (Positions, error) {
	if a.cfg.Instance == nil {
		return Positions{}, errors.New("a witness holds no data")
	}
	o, err := a.cfg.Instance.Observe(ctx)
	return Positions{Flush: o.Flushed, Replay: o.Replay}, err
}

// ServeHeartbeats answers the heartbeats of another member's agent; the endpoint calls it for each stream. It returns
// after the stream has ended. Where the end may be a death, it returns after that was confirmed or disproved.
func (a *Agent) ServeHeartbeats(ctx context.Context, from ag.ReplicaID, s liveness.HeartbeatStream) {
	if !a.voter.Serve(from, s) {
		return
	}
	if snap := a.snapshot.Load(); snap != nil {
		if r, ok := snap.Group.Replica(from); ok {
			a.voter.Probe(ctx, r)
		}
	}
}

// ping asks a member for a sign of life, and takes over what the member has seen of the record: the store may have
// forgotten it.
func (a *Agent) ping(ctx context.Context, r ag.Replica) error {
	seen, err := a.cfg.Peers.Ping(ctx, r)
	if err == nil && a.guard.Hear(r, seen) {
		a.Wake() // a replica knows of a later epoch
	}
	return err
}

// others returns the other members: before the first read of the record those that this node remembers. A node that was
// removed while it was down never reads one, and learns only from their answers that it is no member.
func (a *Agent) others() []ag.Replica {
	var members []ag.Replica
	if snap := a.snapshot.Load(); snap != nil {
		members = snap.Group.Replicas
	} else if a.cfg.Remembered != nil {
		if g := a.cfg.Remembered(); g != nil {
			members = g.Replicas
		}
	}
	return slices.DeleteFunc(slices.Clone(members), func(r ag.Replica) bool { return r.ID == a.cfg.Self })
}

// Heard returns when another member last gave a sign of life, to about a second and by this machine's clock. It is for
// people. Zero: the member has given none since the agent started. Any goroutine may call it.
func (a *Agent) Heard(id ag.ReplicaID) time.Time { return a.pinger.Reach().Heard(id) }

// Gate returns the boottime until which bytes of the local primary may reach clients: the end of its lease, or of its
// answer lease if that is earlier. 0 means no limit, because the local server is not a primary (S3). From the moment
// the keeper is armed for a promotion until this node leads and has opened, the gate is shut. PostgreSQL keeps the
// sessions of a standby over its promotion, and their writes are not protected by the record yet.
func (a *Agent) Gate() time.Duration {
	answered := a.answered.Load() // BEFORE the epoch: an epoch that is opened was armed first
	switch e := a.lease.Armed(); {
	case e == 0:
		return 0
	case answered > uint64(e): // a caller's own goroutine: a shut gate is its end
		a.violated(assert.ViolationError{What: fmt.Sprintf("clients are answered in epoch %d, and the keeper is armed for epoch %d", answered, e)})
		return 1
	case a.isShut(), a.violation.Load() != nil, a.suspected.Load() != a.cleared.Load(), answered != uint64(e):
		return 1
	}
	return max(a.lease.AnswersUntil(), 1)
}

// Facts is what a primary needs for its side of a stream handshake.
type Facts struct {
	Leading   bool
	Epoch     ag.Epoch
	Timelines []ag.TimelineEntry
}

// Facts returns the facts of the last turn.
func (a *Agent) Facts() Facts {
	v := a.view.Load()
	if v == nil {
		return Facts{}
	}
	leading := v.Record.Epoch.Leader == v.Self && v.Record.Epoch.Phase == ag.PhaseLead && v.Local.Server == ag.ServerWritable
	return Facts{Leading: leading, Epoch: v.Record.Epoch.Epoch, Timelines: v.Record.State.Timelines}
}

// View returns the last view; nil before the first turn. It is shared and must not be modified.
func (a *Agent) View() *ag.View { return a.view.Load() }

// Plan returns the last plan; nil before the first turn. It is shared and must not be modified.
func (a *Agent) Plan() *ag.Plan { return a.plan.Load() }

// LeaseUntil returns the boottime until which this node may act as primary; in the past if it may not.
func (a *Agent) LeaseUntil() time.Duration { return a.lease.Until() }

// Seen returns the latest record that this node has seen, which is its answer to a ping of another member. Any
// goroutine may call it.
func (a *Agent) Seen() marks.Seen { return a.guard.Latest() }

// Snapshot returns what the store last returned; nil before the first read. It is shared and must not be modified.
func (a *Agent) Snapshot() *Snapshot { return a.snapshot.Load() }

func (a *Agent) profile() ag.Profile {
	if s := a.snapshot.Load(); s != nil {
		return profileOf(s.Group)
	}
	return profileOf(ag.Group{})
}

func profileOf(g ag.Group) ag.Profile {
	if p, ok := ag.Profiles[g.Profile]; ok {
		return p
	}
	return ag.Profiles["default"]
}

// Run runs the node until ctx is done, then fences or stops what it owns. It returns nil after an orderly end, and
// ErrRestart after an end that leaves the server to another agent.
func (a *Agent) Run(ctx context.Context) error {
	a.startedAt = boottime.Now()
	a.turned.Store(int64(a.startedAt))
	if err := a.loadCondition(); err != nil {
		return err
	}
	seen, err := a.cfg.Marks.Seen()
	if err != nil {
		return err
	}
	a.guard.Remember(seen)
	if err := a.history.Open(a.cfg.Marks.Dir()); err != nil {
		a.log.Warn("earlier decisions are not all known", "err", err)
	}
	a.writer.Start()
	defer a.writer.Close()
	background, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { a.pinger.Run(background) })
	wg.Go(func() { a.voter.Watch(background, a.watched) })
	wg.Go(func() { a.guard.Keep(background, a.cfg.Marks.SetSeen, a.log) })
	if a.cfg.Instance != nil {
		wg.Go(func() { a.lease.Run(background) })
		wg.Go(func() { a.heartbeats.Run(background) })
		wg.Go(func() { a.chores(background) })
		wg.Go(func() { a.watchStrays(background) })
	}
	if a.cfg.Probes != nil && a.cfg.Keeper != nil {
		a.cond.autopsy = boottime.Now() + crashReportLimit
		a.children.Go(func() { a.lastWords(background) })
	}
	if a.cfg.Instance != nil {
		a.attach(ctx)
	}
	inner, end := context.WithCancelCause(ctx)
	defer end(nil)
	err = assert.Guard(func() error { return a.loop(inner) })
	end(err) // the worker and all else under way: a successor must not wait for a checkpoint
	if assert.Violated(err) {
		err = a.abdicate(err)
	}
	stop()
	wg.Wait()
	a.seal.readers.work.Wait()
	a.preset.Wait()
	a.children.Wait() // a promotion or a hand-over must end BEFORE the shutdown begins
	if a.cfg.Instance != nil && !errors.Is(err, ErrRestart) {
		err = errors.Join(err, a.shutdown())
	}
	return err
}

// violated shuts the gate, and makes the loop end with the error of an assertion that another goroutine found violated.
// Any goroutine may call it, also one that asks for the gate.
func (a *Agent) violated(err error) {
	if a.violation.CompareAndSwap(nil, &err) {
		a.Wake()
	}
}

// abdicate ends the epoch, and with it the agent, after an assertion was violated: no decision of this node may rest on
// the mistake. The server is fenced BEFORE the leadership is released.
func (a *Agent) abdicate(broken error) error {
	a.violated(broken)
	a.log.Error("the agent ends", "err", broken, "epoch", a.lease.Armed())
	if e := a.lease.Armed(); e != 0 && a.cfg.Keeper != nil {
		a.fence(broken.Error(), e)
		if !a.fencing {
			a.release(context.Background(), e)
		}
	}
	return fmt.Errorf("%w; this node has given up what it held: start it again (coterie agent), and report this", broken)
}

// shutdown stops the server in order, and releases the leadership if it is held, so that the others need not wait for
// silence.
func (a *Agent) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a.cfg.Upstream.Hold()
	e := a.lease.Armed()
	if e != 0 {
		a.publishClosed("this node is shutting down")
		defer a.release(ctx, e)
	}
	if _, err := a.cfg.Keeper.Stop(ctx, 5*time.Second); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if e != 0 {
		a.cfg.Downstream.Lead(e, false)
		return a.cfg.Keeper.Disarm(ctx, e)
	}
	return nil
}

// release records that the leadership is free.
func (a *Agent) release(ctx context.Context, e ag.Epoch) {
	snap := a.snapshot.Load()
	if snap == nil || snap.Record.Epoch.Epoch != e || snap.Record.Epoch.Leader != a.cfg.Self {
		return
	}
	a.lease.Void()
	l := ag.Lead{Epoch: e, Holder: a.cfg.Self, Incarnation: a.cfg.Incarnation, Released: true}
	l.Settled = snap.Record.Lead.Settled && snap.Record.Lead.Epoch == e
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := a.cfg.Store.Renew(ctx, snap.Record.Revs.Epoch, l); err != nil {
		a.log.Warn("the leadership was not released; the others wait for silence", "err", err)
	}
}
