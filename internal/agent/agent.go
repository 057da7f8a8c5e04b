package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Config is everything an agent is joined to. All fields are required, but those a witness has no use for: Instance, Keeper,
// Upstream, Downstream and Seeder are nil there; and Wishes, Probes and Suspend, which may be nil.
type Config struct {
	Self        ag.ReplicaID
	Incarnation string
	Marks       *Marks
	Store       Store
	Instance    Instance
	Keeper      Keeper
	Upstream    Upstream
	Downstream  Downstream
	Peers       Peers
	Sessions    Sessions
	Seeder      Seeder
	// Wishes are what operators want of this node's copy; nil: nothing.
	Wishes Wishes
	Logger *slog.Logger
	// OnGroup is called by the loop with each new configuration of the group, before it is decided upon.
	OnGroup func(ag.Group)
	// Probes watches over the server and its disks; nil: nobody does, and the node is always well.
	Probes Probes
	// Fence is how long this host takes to fence a server, as measured; 0: not measured. The group's profile must allow for it.
	Fence time.Duration
	// NoVote says why this node does not cast its vote in the quorum, though it has one; "": it does, or has none. nil: not told.
	NoVote func() string
	// Copying describes, for who asked for it, the copy to this node that is under way or is to go on: others tell of it while this node does
	// not answer. The agent passes it on as it is; nil, or JSON of nothing: there is none. It answers from memory.
	Copying func() json.RawMessage
	// Suspend suspends this node's data movement in the group's configuration, as an operator would; nil: nobody is told.
	Suspend func(context.Context) error
}

// Agent runs one node. Make it with New, run it with Run.
type Agent struct {
	cfg   Config
	log   *slog.Logger
	lease *lease
	seal  *sealer
	voter *voter
	heart *hearts
	wake  chan struct{}

	// Published by the loop for others to read.
	snapshot atomic.Pointer[Snapshot]
	view     atomic.Pointer[ag.View]
	plan     atomic.Pointer[ag.Plan]
	routes   atomic.Pointer[ag.Routes]
	reach    atomic.Pointer[reachability]
	progress atomic.Pointer[string] // of the worker's action
	history  *decisions
	target   atomic.Pointer[ProbeTarget]
	scribe   *scribe
	trust    chan chan<- string // an operator's word that the copy may be trusted
	turned   atomic.Int64       // boottime of the loop's last turn
	suspect  atomic.Bool        // one member acknowledged twice: no answer leaves until the setting is proven anew
	shut     atomic.Bool        // set by the worker: the gate is shut for a planned failover
	outcome  atomic.Pointer[Outcome]
	believed trust
	preset   atomic.Pointer[preset]
	// restarting is how far a restart in place is; set by the worker.
	restarting atomic.Int32

	// Owned by the loop.
	seen       ag.Revisions
	seenAt     time.Duration
	observed   Observation
	up         bool          // the server answered in this turn
	upAt       time.Duration // boottime of its last answer
	generation uint64
	sync       ag.Sync
	stuck      stuck
	streams    map[ag.ReplicaID]*streamFacts
	seals      map[ag.ReplicaID]ag.SealReport
	sealing    map[ag.ReplicaID]ag.Epoch // asked, and not answered yet
	sealedAt   time.Duration
	endOfRec   ag.LSN
	timelines  []ag.TimelineEntry
	opened     ag.Epoch
	restart    ag.LSN // set: the server was started again in this epoch, and had written this much
	prep       preparation
	prepared   chan preparation
	restarts   chan restartRequest
	leave      bool // the loop shall end, for a successor
	attached   bool // the server was left by the agent before, and what it waits for is not proven yet
	noRewind   ag.CopyID
	rewoundIn  ag.Epoch      // the epoch of the last rewind that ended well; refused again in it, the copy is made anew
	repairedAt time.Duration // boottime of the last rewind or seeding; refusals before it are history
	leadingAt  ag.Epoch
	feedingAt  ag.Epoch // the candidate of that epoch may stream from here; 0: nobody may
	task       *task
	failed     map[string]time.Duration // boottime before which the action of that name is not tried again
	reports    chan sealAnswer
	done       chan taskResult
	children   sync.WaitGroup
	statusAt   time.Duration
	statusWas  string
	startedAt  time.Duration
	startRetry time.Duration
	answeredAt time.Duration // boottime of the server's last answer while it was to be promoted

	tried       *ag.Sync // a setting that may be in force as well; nil: none
	copyChanges uint64   // streams that came back with another copy
	fencing     bool     // a fence is not confirmed yet
	refusal     refusal  // the last one

	cond       condition
	distrusted atomic.Bool // the copy is under quarantine
	checked    atomic.Bool // the copy is as far as it was when this node was last heard of
	seenSelf   bool        // what this agent published has been read back
	autopsies  chan Autopsy
	suspended  chan struct{}
	pid        int // of the postmaster, 0: none
}

// streamFacts remembers a member's stream beyond its end.
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
		prepared: make(chan preparation, 1), restarts: make(chan restartRequest),
		believed: trust{kick: make(chan struct{}, 1)},
		streams:  map[ag.ReplicaID]*streamFacts{}, seals: map[ag.ReplicaID]ag.SealReport{}, sealing: map[ag.ReplicaID]ag.Epoch{},
		failed: map[string]time.Duration{}, history: newDecisions(), scribe: newScribe(c.Logger),
		trust: make(chan chan<- string), autopsies: make(chan Autopsy, 4), suspended: make(chan struct{}, 1),
	}
	if c.Store == nil || c.Peers == nil || c.Sessions == nil || c.Marks == nil {
		return nil, errors.New("agent: Store, Peers, Sessions and Marks are required")
	}
	gate := &answers{self: c.Self, moved: c.Sessions.GateMoved}
	a.lease = &lease{
		store: c.Store, keeper: c.Keeper, profile: a.profile, log: c.Logger, lost: a.Wake, kick: make(chan struct{}, 1), answers: gate,
		alive: a.turns, moved: c.Sessions.GateMoved,
	}
	a.voter = newVoter(c.Self, c.Peers, a.Wake, c.Logger)
	a.heart = &hearts{
		self: c.Self, incarnation: c.Incarnation, peers: c.Peers, answers: gate, profile: a.profile, log: c.Logger, moved: make(chan struct{}, 1),
		answered: newAnswered(),
	}
	a.seal = &sealer{
		self: c.Self, marks: c.Marks, instance: c.Instance, keeper: c.Keeper, upstream: c.Upstream, lease: a.lease,
		log: c.Logger, turn: make(chan struct{}, 1), distrusted: a.unpromotable, checked: a.checked.Load,
	}
	a.seal.turn <- struct{}{}
	a.seenAt = boottime.Now()
	a.reach.Store(&reachability{heard: map[ag.ReplicaID]time.Time{}})
	return a, nil
}

// Wake makes the loop look again at once. Any goroutine may call it; it never blocks.
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
	return a.seal.Seal(ctx, req)
}

// Position answers how far this node's copy is; the endpoint calls it.
func (a *Agent) Position(ctx context.Context) (Positions, error) {
	if a.cfg.Instance == nil {
		return Positions{}, errors.New("a witness holds no data")
	}
	o, err := a.cfg.Instance.Observe(ctx)
	return Positions{Flush: o.Position, Replay: o.Replay}, err
}

// ServeHeart answers the heartbeats of another member's agent; the endpoint calls it for each stream. It returns when the stream has
// ended, and where it ended as by a death, when that was found to be so or not.
func (a *Agent) ServeHeart(ctx context.Context, from ag.ReplicaID, s Heart) {
	if !a.voter.serve(from, s) {
		return
	}
	if snap := a.snapshot.Load(); snap != nil {
		if r, ok := snap.Group.Replica(from); ok {
			a.voter.probe(ctx, r)
		}
	}
}

// Gate returns the instant until which bytes of the local primary may reach clients: the end of its lease, or of its answer lease where
// that comes first. 0 sets no limit, because the local server is no primary (S3).
func (a *Agent) Gate() time.Duration {
	switch {
	case a.lease.armed.Load() == 0:
		return 0
	case a.shut.Load(), a.suspect.Load():
		return 1
	}
	return max(min(a.lease.until(), a.lease.answers.until()), 1)
}

// Facts are what a primary's side of a stream handshake needs.
type Facts struct {
	Leading   bool
	Epoch     ag.Epoch
	Timelines []ag.TimelineEntry
}

// Facts returns them from the last turn.
func (a *Agent) Facts() Facts {
	v := a.view.Load()
	if v == nil {
		return Facts{}
	}
	leading := v.Record.Epoch.Leader == v.Self && v.Record.Epoch.Phase == ag.PhaseLead && v.Local.Server == ag.ServerWritable
	return Facts{Leading: leading, Epoch: v.Record.Epoch.Epoch, Timelines: v.Record.State.Timelines}
}

// View returns the last view, nil before the first turn. It is shared: do not change it.
func (a *Agent) View() *ag.View { return a.view.Load() }

// Plan returns the last plan, nil before the first turn. It is shared: do not change it.
func (a *Agent) Plan() *ag.Plan { return a.plan.Load() }

// LeaseUntil returns the BOOTTIME until which this node may act as primary; past when it may not.
func (a *Agent) LeaseUntil() time.Duration { return a.lease.until() }

// Seen returns the latest record that this node has seen: what it answers to a ping of another member. Any goroutine may call it.
func (a *Agent) Seen() SeenMark { return a.believed.latest() }

// Snapshot returns what the store said last, nil before the first read. It is shared: do not change it.
func (a *Agent) Snapshot() *Snapshot { return a.snapshot.Load() }

func (a *Agent) profile() ag.Profile {
	if s := a.snapshot.Load(); s != nil {
		return profileOf(s.Group)
	}
	return ag.Profiles["default"]
}

func profileOf(g ag.Group) ag.Profile {
	if p, ok := ag.Profiles[g.Profile]; ok {
		return p
	}
	return ag.Profiles["default"]
}

// Run runs the node until ctx is done, then fences or stops what it owns. It returns nil after an orderly end, ErrRestart after one
// that leaves the server to another agent.
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
	a.believed.remember(seen)
	if err := a.history.open(a.cfg.Marks.dir); err != nil {
		a.log.Warn("earlier decisions are not all known", "err", err)
	}
	a.scribe.start()
	defer a.scribe.close()
	background, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { a.ping(background) })
	wg.Go(func() { a.rememberSeen(background) })
	if a.cfg.Instance != nil {
		wg.Go(func() { a.lease.run(background) })
		wg.Go(func() { a.heart.run(background) })
		wg.Go(func() { a.chores(background) })
	}
	if a.cfg.Probes != nil && a.cfg.Keeper != nil {
		a.children.Go(func() { a.lastWords(background) })
	}
	if a.cfg.Instance != nil {
		a.attach(ctx)
	}
	err = a.loop(ctx)
	stop()
	wg.Wait()
	a.seal.readers.work.Wait()
	a.children.Wait() // a promotion or a hand-over must not go on behind the shutdown's back
	if a.cfg.Instance != nil && !errors.Is(err, ErrRestart) {
		err = errors.Join(err, a.shutdown())
	}
	return err
}

// shutdown releases the leadership, if it is held, and stops the server in order: the others need not wait for silence.
func (a *Agent) shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	a.cfg.Upstream.Hold()
	e := ag.Epoch(a.lease.armed.Load())
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

// release tells the group that the leadership is free.
func (a *Agent) release(ctx context.Context, e ag.Epoch) {
	snap := a.snapshot.Load()
	if snap == nil || snap.Record.Epoch.Epoch != e || snap.Record.Epoch.Leader != a.cfg.Self {
		return
	}
	a.lease.void()
	l := ag.Lead{Epoch: e, Holder: a.cfg.Self, Incarnation: a.cfg.Incarnation, Released: true}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := a.cfg.Store.Renew(ctx, snap.Record.Revs.Epoch, l); err != nil {
		a.log.Warn("the leadership was not released; the others wait for silence", "err", err)
	}
}
