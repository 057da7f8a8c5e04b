package agenttest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Node models one node: its data directory, its server, its keeper and its ends of the WAL streams. The agent's ports
// are its methods Instance, Keeper, Upstream, Downstream, Peers, Sessions and Seeder.
type Node struct {
	ID    ag.ReplicaID
	Store *Store

	w     *World
	agent Agent
	life  context.Context // of its process
	ended context.CancelFunc

	// The data directory.
	data   ag.DataState
	inside ag.CopyID
	begun  ag.LSN // bytes of a record behind the last whole one
	log    []Entry
	tls    []ag.TimelineEntry
	forks  []ag.Position
	seeds  int
	rewind int

	// The server.
	pid       int
	recovery  bool
	hung      bool          // answers nothing, but lives
	lingering bool          // its walreceiver does not go away
	silent    time.Duration // boottime since which its walreceiver hangs; 0: it does not
	streamed  bool          // it has received something since its start
	torn      bool          // the last record that it received is not replayed
	redo      time.Duration // what replaying the last record takes after each start
	replayed  time.Duration // boottime at which it is replayed
	syncP     []ag.ReplicaID
	written   *ag.Sync // the setting in the file, where it is another one than that in force
	syncN     int
	syncEpoch ag.Epoch
	doubled   []ag.ReplicaID // members that a stray receiver acknowledges for as well
	waits     []*waiting
	pids      int

	// The keeper.
	armed      ag.Epoch
	seenEpoch  ag.Epoch
	deadline   time.Duration
	timer      *time.Timer
	generation uint64
	starts     int
	fences     []string
	detached   bool
	exits      chan string

	// The streams.
	source    ag.ReplicaID
	sourceEp  ag.Epoch
	announced ag.CopyID    // as which copy this node streams: that of the moment at which the stream began
	leading   ag.Epoch     // downstream is open for that epoch; 0: closed
	only      ag.ReplicaID // for this member alone, from a server in recovery; "": for all, from a primary
	held      bool         // feedback is held back
	changed   chan struct{}
	told      string // the streams at the last signal of changed

	// The clients.
	events []string
	routes *ag.Routes
	busy   int // sessions in the middle of something

	stuckReaders bool

	fail map[string]error
	hook map[string]func()
	jam  map[string]chan struct{}
}

// waiting is a commit that waits for its acknowledgement.
type waiting struct {
	at   ag.LSN
	done chan error
}

func (n *Node) locked(do func()) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	do()
	n.w.settle()
}

// Fail makes every call of that name fail with err, until err is nil: "start", "promote", "rewind", "seed", "set-sync",
// "fence", "stop", "detach", "status", "checkpoint", "history", "extend", "seal", "release", "holds".
func (n *Node) Fail(call string, err error) {
	n.locked(func() {
		if n.fail == nil {
			n.fail = map[string]error{}
		}
		n.fail[call] = err
	})
}

// Before runs do once, before the next call of that name: the names of Fail.
func (n *Node) Before(call string, do func()) {
	n.locked(func() {
		if n.hook == nil {
			n.hook = map[string]func(){}
		}
		n.hook[call] = do
	})
}

// Stall makes calls of that name ("seed", "rewind", "promote") hang until they are cancelled, or lets them continue.
func (n *Node) Stall(call string, on bool) {
	n.locked(func() {
		if n.jam == nil {
			n.jam = map[string]chan struct{}{}
		}
		was, jammed := n.jam[call]
		switch {
		case on && !jammed:
			n.jam[call] = make(chan struct{})
		case !on && jammed:
			close(was)
			delete(n.jam, call)
		}
	})
}

func (n *Node) begin(ctx context.Context, call string) error {
	n.w.mu.Lock()
	do, err, jam := n.hook[call], n.fail[call], n.jam[call]
	delete(n.hook, call)
	n.w.mu.Unlock()
	if do != nil {
		do()
	}
	if jam != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-jam:
		}
	}
	return err
}

// Tamper changes the last WAL record of this copy, as a disk or a copied data directory might.
func (n *Node) Tamper() {
	n.locked(func() {
		n.w.last++
		n.log = slices.Clone(n.log)
		n.log[len(n.log)-1].ID = n.w.last
	})
}

// LoseData empties the data directory of a node whose server is down.
func (n *Node) LoseData() {
	n.locked(func() { n.data, n.inside, n.log, n.tls = ag.DataEmpty, "", nil, nil })
}

// TakeDisk ends the server and takes the file system of the data directory away.
func (n *Node) TakeDisk() {
	n.locked(func() {
		n.stopped("killed by signal 9")
		n.data = ag.DataForeign
	})
}

// GiveDisk puts a file system in its place that was restored from an older state: without the last records, and under
// another copy id if one is given.
func (n *Node) GiveDisk(lost int, id ag.CopyID) {
	n.locked(func() {
		n.data, n.log = ag.DataPresent, slices.Clone(n.log[:len(n.log)-lost])
		if id != "" {
			n.inside = id
		}
	})
}

// Save returns what puts the data directory, whose server is down then, back to what it is now.
func (n *Node) Save() (restore func()) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	data, inside, log, tls := n.data, n.inside, slices.Clone(n.log), slices.Clone(n.tls)
	return func() {
		n.locked(func() {
			n.data, n.inside, n.log, n.tls, n.begun = data, inside, slices.Clone(log), slices.Clone(tls), 0
		})
	}
}

// Crash kills the server as a bug would.
func (n *Node) Crash() { n.locked(func() { n.stopped("killed by signal 9") }) }

// Hang makes the server answer nothing, or answer again.
func (n *Node) Hang(on bool) { n.locked(func() { n.hung = on }) }

// Busy gives the server that many sessions in the middle of a transaction.
func (n *Node) Busy(sessions int) { n.locked(func() { n.busy = sessions }) }

// StuckReaders makes readers stay that are asked to continue elsewhere.
func (n *Node) StuckReaders(on bool) { n.locked(func() { n.stuckReaders = on }) }

// Linger keeps the walreceiver alive after its source has gone, or ends it.
func (n *Node) Linger(on bool) { n.locked(func() { n.lingering = on }) }

// Silence makes the walreceiver hang, as in an fsync that does not end: its stream stays open, nothing is flushed, and
// nothing is reported.
func (n *Node) Silence(on bool) {
	n.locked(func() {
		n.silent = 0
		if on {
			n.silent = boottime.Now()
		}
	})
}

// heardAt returns when the last report of the walreceiver was sent.
func (n *Node) heardAt() time.Duration {
	if n.silent != 0 {
		return n.silent
	}
	return boottime.Now()
}

// Begin makes the copy hold the beginning of a record behind its last whole one.
func (n *Node) Begin(bytes ag.LSN) { n.locked(func() { n.begun = bytes }) }

// flushed returns the end of the bytes here, which may lie inside a record.
func (n *Node) flushed() ag.Position {
	p := n.position()
	p.LSN += n.begun
	return p
}

// Torn makes the last record received one that no node has whole: it cannot be replayed.
func (n *Node) Torn(on bool) { n.locked(func() { n.torn = on }) }

// SlowReplay has the server need that long, from now and from each start on, to replay its last record.
func (n *Node) SlowReplay(d time.Duration) {
	n.locked(func() { n.redo, n.replayed = d, boottime.Now()+d })
}

// WriteSyncByHand lets another program write a setting that the next reload puts in force.
func (n *Node) WriteSyncByHand(p []ag.ReplicaID, k int) {
	n.locked(func() { n.written = &ag.Sync{P: p, N: k} })
}

// SyncWrittenByHand reports whether such a setting is still there.
func (n *Node) SyncWrittenByHand() (is bool) {
	n.locked(func() { is = n.written != nil })
	return is
}

// SetSyncByHand changes the synchronous setting as a superuser would.
func (n *Node) SetSyncByHand(p []ag.ReplicaID, k int) { n.locked(func() { n.syncP, n.syncN = p, k }) }

// State is the part of a node that a test may inspect.
type State struct {
	Running, Recovery, Receiving bool
	Data                         ag.DataState
	Copy                         ag.CopyID
	Position                     ag.Position
	Armed                        ag.Epoch
	Deadline                     time.Duration
	Starts, Seeds, Rewinds       int
	Forks                        []ag.Position
	Fences, Events               []string
	Source, Feeds                ag.ReplicaID
	SourceEp                     ag.Epoch
	SyncP                        []ag.ReplicaID
	SyncN                        int
	Routes                       *ag.Routes
}

// State returns it.
func (n *Node) State() State {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return State{
		Running: n.pid != 0, Recovery: n.recovery, Receiving: n.receiving(), Data: n.data, Copy: n.inside, Position: n.position(), Armed: n.armed,
		Deadline: n.deadline, Starts: n.starts, Seeds: n.seeds, Rewinds: n.rewind, Forks: slices.Clone(n.forks), Fences: slices.Clone(n.fences),
		Events: slices.Clone(n.events), Source: n.source, Feeds: n.only, SourceEp: n.sourceEp, SyncP: slices.Clone(n.syncP), SyncN: n.syncN, Routes: n.routes,
	}
}

func (n *Node) end() ag.LSN {
	if len(n.log) == 0 {
		return 0x1000
	}
	return n.log[len(n.log)-1].LSN
}

func (n *Node) position() ag.Position {
	if len(n.tls) == 0 {
		return ag.Position{}
	}
	return ag.Position{Timeline: n.tls[len(n.tls)-1].TLI, LSN: n.end()}
}

func (n *Node) gate() time.Duration {
	n.w.mu.Lock()
	a := n.agent
	n.w.mu.Unlock()
	if a == nil {
		return 1
	}
	return a.Gate()
}

// up returns the node this one streams from, nil when it does not.
func (n *Node) up() *Node {
	p := n.w.nodes[n.source]
	if p == nil || n.pid == 0 || n.hung || !n.recovery || n.agent == nil || p.agent == nil || p.pid == 0 || p.recovery != (p.only != "") || p.leading != n.sourceEp ||
		n.w.cuts[[2]ag.ReplicaID{n.ID, p.ID}] || p.only != "" && p.only != n.ID {
		return nil
	}
	return p
}

// prefix reports whether this copy is a beginning of p's.
func (n *Node) prefix(p *Node) bool {
	k := len(n.log)
	return k <= len(p.log) && (k == 0 || n.log[k-1] == p.log[k-1])
}

func (n *Node) receiving() bool {
	p := n.up()
	return n.lingering || p != nil && n.prefix(p)
}

func (n *Node) receive() {
	p := n.up()
	if n.silent != 0 {
		return
	}
	n.streamed = n.streamed || p != nil && n.prefix(p)
	if p != nil && n.prefix(p) && (len(n.log) < len(p.log) || len(n.tls) != len(p.tls)) {
		n.log, n.tls = slices.Clone(p.log), slices.Clone(p.tls)
	}
}

// streamers are the nodes that stream from this one.
func (n *Node) streamers() []*Node {
	var out []*Node
	for _, s := range n.w.nodes {
		if s.up() == n && s.prefix(n) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(x, y *Node) int { return cmp.Compare(x.ID, y.ID) })
	return out
}

// commit writes a commit and returns the channel of its acknowledgement.
func (n *Node) commit() (Entry, <-chan error) {
	c := n.w.append(n)
	x := &waiting{at: c.LSN, done: make(chan error, 1)}
	n.waits = append(n.waits, x)
	n.w.settle()
	return c, x.done
}

func (n *Node) acknowledge() {
	if n.pid == 0 || n.recovery {
		return
	}
	n.waits = slices.DeleteFunc(n.waits, func(x *waiting) bool {
		have := 0
		if !n.held {
			for _, s := range n.streamers() {
				if slices.Contains(n.syncP, s.ID) && s.end() >= x.at {
					have++
				}
			}
		}
		if have < n.syncN {
			return false
		}
		x.done <- nil
		return true
	})
}

var errServerEnded = errors.New("the server ended")

// stopped ends the server completely.
func (n *Node) stopped(how string) {
	if n.pid == 0 {
		return
	}
	n.pid, n.hung = 0, false
	for _, x := range n.waits {
		x.done <- errServerEnded
	}
	n.waits = nil
	n.exits <- how
}

// Instance returns the node's agent.Instance.
func (n *Node) Instance() agent.Instance { return (*instance)(n) }

// ErrAfterEffect is an error to Fail with that leaves the effect in place.
var ErrAfterEffect = errors.New("no answer after the effect")

// Double lets a stray receiver of the member's name draw WAL from this node, and acknowledge.
func (n *Node) Double(member ag.ReplicaID) {
	n.locked(func() { n.doubled = append(n.doubled, member) })
}

// copyFrom makes this copy equal to the source's.
func (n *Node) copyFrom(ctx context.Context, source ag.ReplicaID) (err error) {
	if _, err := n.w.reach(ctx, n.ID, source); err != nil {
		return err
	}
	n.locked(func() {
		p := n.w.nodes[source]
		if n.pid != 0 || p == nil || p.pid == 0 {
			err = errors.New("the target runs or the source does not")
			return
		}
		n.log, n.tls, n.inside, n.data = slices.Clone(p.log), slices.Clone(p.tls), p.inside, ag.DataPresent
	})
	return err
}
