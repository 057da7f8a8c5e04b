package agsim

import (
	"hash/maphash"
	"iter"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Bounds keep an exploration finite: how far the record may go, and how many faults of each kind one history may
// contain.
type Bounds struct {
	Epochs uint16 // the highest epoch
	Writes uint8  // commits
	Faults uint8  // crashes of nodes and servers, expired leases
	Ops    uint8  // planned and forced failovers
	Wipes  uint8  // lost disks, and disks restored to an earlier state
	Losses uint8  // transactions whose answer is lost and that may take effect later
	States int    // give up after this many worlds; 0: never
	Born   bool   // begin with the founding of the group instead of a healthy group
	Forced bool   // let Ops be forced failovers as well
	Deaths uint8  // the number of times that a member may see the leader die, or believe it; 0: there are no votes
	Ills   uint8  // servers that fall ill, storages that lose a write, settings changed by others, second walsenders
	// Restarts are those of a primary's agent while its server keeps running.
	Restarts uint8
	// Asks are what clients do: they connect, ask, and cancel. 0: there are no sessions. Otherwise a reader is on b and
	// a client on the primary from the beginning.
	Asks uint8
	// Changes are those of the configuration by operators.
	Changes uint8
	// Tears are records of which the beginning arrives alone, and answers between members that arrive late and twice.
	Tears uint8
}

// repaired is of how many worlds one is repaired.
const repaired = 2000

// left repairs a world, and returns the invariant that breaks.
func (m *Model) left(w World) (flaw string) {
	defer func() {
		if v, ok := recover().(violation); ok {
			flaw = "while it is repaired: " + string(v)
		}
	}()
	if stuck := m.recovers(w); stuck != "" {
		return stuck + " (NothingIsStuck)"
	}
	return ""
}

// spareCopies is the number of copies that may be made anew in one history.
const spareCopies = 3

// Report is the result of an exploration.
type Report struct {
	States  int
	Depth   int  // events in the longest shortest history
	All     bool // every world within the bounds was seen
	Flaw    string
	Story   string // the shortest history that leads to the flaw
	Elapsed time.Duration
}

// event is one thing that happens. Its meaning is in Model.apply.
type event struct {
	what what
	i, j uint8
}

type what uint8

const (
	doTurn    what = iota // node i decides; j is the information from its clocks and network
	doPerform             // the decision of node i takes effect
	doSeal                // node j gives its seal to candidate i
	doStream              // one record, or the opening of the stream, from i to j
	doWrite
	doAck
	doCrash       // the node
	doServerCrash // the PostgreSQL only
	doExpire      // the lease runs out, and the agent notices
	doWipe
	doRestore // from a backup that lacks the last record
	doPlanned // an operator requests j
	doForced
	doLose // node i gives up waiting for its transaction
	doLate // that transaction then takes effect
	doBeat // j acknowledges a heartbeat of primary i

	doIll     // j: 1 if a restart cures it
	doRecover // without a person
	doDistrust
	doResume // by an operator; j: 1: the copy is trusted as it is
	doForeign
	doTwice
	doAnnounce
	doDetach
	doAttach
	doGone   // the keeper waited long enough
	doGiveUp // of a hand-over

	doConnect // a client asks node i for a session, session j&15; j>>4: 1 as that of a primary
	doOpen    // it is opened there
	doAsk     // j>>4: 1 to write
	doWaited  // its commit is on enough members
	doCut     // its wait is cancelled
	doReply   // the answer arrives at the gate

	doChange // of the configuration; j: which
	doRemove // member i goes, whose removal has begun

	doTear      // the beginning of a record arrives at i
	doSealLate  // j answers candidate i, and the answer is on its way
	doFlushLate // the same of what j has flushed of primary i
	doArrive    // what is on its way; j: 1 if it will arrive again
)

// The part of the world that a turn sees, as bits of event.j.
const (
	sawSilence = 1 << iota // of the leader, and of the members whose streams are closed
	sawNobody              // no other node answers
	sawDeath               // of the leader: evidence
	sawQuiet               // this node has acknowledged nothing for longer than any answer lease lasts
)

// Explore walks every history within the bounds, breadth first, and stops at the first world or event that breaks an
// invariant.
func (m *Model) Explore(b Bounds) (r Report) {
	begin := time.Now()
	m.votes, m.clients, m.altered, m.loose = b.Deaths > 0, b.Asks > 0, b.Changes > 0, b.Changes > 0
	defer func() { r.Elapsed = time.Since(begin) }()
	first := m.first(b)
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{maphash.Comparable(seed, first): {}}
	type step struct {
		from int32
		ev   event
	}
	steps := []step{{from: -1}}
	var level, next frontier
	level.add(first, 0)
	var evs []event
	for len(level) > 0 {
		for p := range level.drain() {
			evs = m.events(&p.world, b, evs[:0])
			for _, ev := range evs {
				w := p.world
				flaw := m.try(&w, ev)
				if flaw != "" {
					path := []event{ev}
					for at := p.step; at > 0; at = steps[at].from {
						path = append([]event{steps[at].ev}, path...)
					}
					r.States, r.Flaw, r.Story = len(seen), flaw, m.story(b, path)
					return r
				}
				h := maphash.Comparable(seed, w)
				if _, old := seen[h]; old || w.epoch.epoch > b.Epochs || int(w.copies) > m.n+spareCopies {
					continue
				}
				if seen[h] = struct{}{}; len(seen)%repaired == 0 {
					if flaw = m.left(w); flaw != "" {
						path := []event{ev}
						for at := p.step; at > 0; at = steps[at].from {
							path = append([]event{steps[at].ev}, path...)
						}
						r.States, r.Flaw, r.Story = len(seen), flaw, m.story(b, path)
						return r
					}
				}
				steps = append(steps, step{p.step, ev})
				next.add(w, int32(len(steps)-1))
			}
			if b.States > 0 && len(seen) >= b.States {
				r.States = len(seen)
				return r
			}
		}
		level, next = next, nil
		r.Depth++
	}
	r.States, r.All = len(seen), true
	return r
}

// place is a world and the step that led to it.
type place struct {
	world World
	step  int32
}

// frontier holds the worlds from which the next steps start, in blocks that are released one by one: worlds are large
// and many.
type frontier [][]place

const frontierBlock = 1024

func (f *frontier) add(w World, step int32) {
	if last := len(*f) - 1; last < 0 || len((*f)[last]) == frontierBlock {
		*f = append(*f, make([]place, 0, frontierBlock))
	}
	last := &(*f)[len(*f)-1]
	*last = append(*last, place{w, step})
}

// drain yields all places in the order in which they were added.
func (f frontier) drain() iter.Seq[*place] {
	return func(yield func(*place) bool) {
		for i, block := range f {
			for j := range block {
				if !yield(&block[j]) {
					return
				}
			}
			f[i] = nil
		}
	}
}

func (m *Model) first(b Bounds) World {
	w := m.steady()
	if b.Born {
		w = m.born()
	}
	w.faults, w.writes, w.ops, w.wipes = b.Faults, b.Writes, b.Ops, b.Wipes
	w.losses, w.deaths, w.ills, w.restarts, w.asks, w.tears, w.changes = b.Losses, b.Deaths, b.Ills, b.Restarts, b.Asks, b.Tears, b.Changes
	if m.clients {
		m.greet(&w)
	}
	return w
}

// try applies the event and returns the invariant it breaks.
func (m *Model) try(w *World, ev event) (flaw string) {
	defer func() {
		if v, ok := recover().(violation); ok {
			flaw = string(v)
		}
	}()
	m.apply(w, ev)
	m.tidy(w)
	m.check(w)
	return ""
}

// tidy removes state that no node can see any more, so that worlds that differ in nothing else become equal.
func (m *Model) tidy(w *World) {
	for i := range m.n {
		n := &w.nodes[i]
		for j := range m.n {
			if !n.streams.has(j) {
				n.got[j] = 0
			}
		}
		if w.letter.over && m.flaw != flawOldReport {
			w.letter = letter{}
		}
		if n.sealEp != w.epoch.epoch {
			n.seals, n.unfit, n.torn, n.sealEp, n.sealLog, n.sealCpy = 0, 0, 0, 0, [maxMembers]wal{}, [maxMembers]copyID{}
		}
		if n.feeds != 0 && n.feeds < w.epoch.epoch && w.nodes[n.feedTo-1].sourceEp != n.feeds {
			n.feeds, n.feedTo = 0, 0
		}
	}
	m.tidyVotes(w)
}

// tidyVotes removes votes and acknowledgements of epochs in which no node has a server any more.
func (m *Model) tidyVotes(w *World) {
	older := false
	for i := range m.n {
		n := &w.nodes[i]
		older = older || n.armed != 0 && n.armed < w.epoch.epoch
		if n.armed == 0 || !m.votes {
			n.answer, n.answerEp, n.obeysEp, n.obeys = 0, 0, 0, declaration{}
		}
	}
	for i := range m.n {
		n := &w.nodes[i]
		if w.votes[i] < w.epoch.epoch {
			w.votes[i], w.against[i], w.waited[i] = 0, 0, 0
		}
		if !older {
			n.known = 0
		}
		if !older && n.withheld != w.epoch.epoch {
			n.withheld = 0
		}
		n.fresh = n.fresh && m.votes
	}
	if !older {
		w.byVotes = 0
	}
}

// apply makes the event happen and returns the plan, if the event is a decision.
func (m *Model) apply(w *World, ev event) (p ag.Plan) {
	i, j := int(ev.i), int(ev.j)
	n := &w.nodes[i]
	switch ev.what {
	case doTurn:
		e := m.env(w, i, ev.j)
		if e.epoch.leader == ev.i+1 && (e.epoch.phase != lead || n.server == writable) && !w.released {
			n.lease = e.epoch.epoch
			e.declared = m.declare(w, i, e.settings)
			if w.restarting && n.inPlace == settled && !n.attached {
				w.renews(i, false)
				e.restarting = false
			}
		}
		if e.quiet > 0 {
			m.lapse(w, i)
		}
		was := n.withheld
		p = m.turn(w, i, e)
		if n.withheld != was && n.withheld != 0 {
			w.deaths--
		}
		return p
	case doBeat:
		m.beat(w, i, j)
	case doExpire:
		w.faults--
		n.lease = 0
		return m.turn(w, i, m.env(w, i, 0))
	case doPerform:
		m.perform(w, i)
	case doSeal:
		m.seal(w, i, j)
	case doStream:
		m.stream(w, j, i)
	case doWrite:
		w.writes--
		m.write(w, i)
	case doAck:
		c, by, _ := m.mayAck(w, i)
		m.checkAck(w, i, c, by)
	case doCrash:
		w.faults--
		w.crash(i)
		if m.flaw == flawForgetPromise {
			n.promised = 0
		}
		m.restarted(w, i)
	case doServerCrash:
		w.faults--
		n.halfPromoted()
		w.stop(i)
		if n.busy.kind != committing {
			n.busy = pending{}
		}
	case doWipe:
		w.wipes--
		w.wipe(i)
	case doRestore:
		w.wipes--
		m.restore(w, i, m.logs.depth(n.log)-1)
	case doLose, doLate, doPlanned, doForced:
		m.request(w, ev)
	case doConnect, doOpen, doAsk, doWaited, doCut, doReply:
		m.client(w, ev)
	case doTear, doSealLate, doFlushLate, doArrive:
		m.mail(w, ev)
	default:
		m.odd(w, ev)
	}
	return p
}

// request is a transaction whose answer is lost, or an operator's request.
func (m *Model) request(w *World, ev event) {
	i := int(ev.i)
	n := &w.nodes[i]
	switch ev.what {
	case doLose:
		w.losses--
		if w.lateBy = ev.i; n.busy.kind == handing {
			w.late = m.lose(w, i)
		} else {
			w.late, n.busy = n.busy, pending{}
		}
	case doLate:
		b := w.late
		w.late, w.lateBy = pending{}, 0
		m.commit(w, i, b)
	default:
		w.ops--
		w.op, w.opTo, w.opEpoch = ag.OpPlanned, ev.i+1, w.epoch.epoch
		if ev.what == doForced {
			w.op = ag.OpForced
		}
	}
}

// odd performs one of oddities, or of changes.
func (m *Model) odd(w *World, ev event) {
	i := int(ev.i)
	n := &w.nodes[i]
	switch ev.what {
	case doIll, doDistrust, doForeign, doTwice:
		w.ills--
	case doAnnounce:
		w.restarts--
	default: // they follow from those
	}
	switch ev.what {
	case doIll:
		n.ill = ill + illness(ev.j)
	case doRecover:
		n.ill = healthy
	case doDistrust:
		w.distrust(i)
	case doResume:
		w.resume(i, ev.j == 1)
	case doForeign:
		n.foreign = true
	case doTwice:
		w.twice(i, int(ev.j))
	case doAnnounce:
		m.announce(w, i)
	case doDetach:
		m.detach(w, i)
	case doAttach:
		m.attach(w, i)
	case doGone:
		m.expire(w, i)
	case doGiveUp:
		m.giveUp(w, i)
	case doChange:
		w.changes--
		m.change(w, i, change(ev.j))
	case doRemove:
		m.remove(w)
	default:
	}
}

// env returns the information for node i's turn, as the bits define it.
func (m *Model) env(w *World, i int, saw uint8) env {
	e := env{epoch: w.epoch, state: w.state, released: w.released, sealed: time.Hour, since: time.Hour, votes: w.votes, against: w.against, evidence: saw&sawDeath != 0}
	e.restarting, e.incarnation, e.settled, e.settings = w.restarting, w.incarnation, w.settled, w.settings
	e.waited, e.declared = w.waited, w.declared
	if saw&sawQuiet != 0 {
		e.quiet = time.Hour
	}
	if saw&sawNobody == 0 {
		e.reach = (1<<m.n - 1) &^ one(i) &^ w.settings.removed
	}
	if saw&sawSilence != 0 {
		e.silence = time.Hour
		for j := range m.n {
			if !w.nodes[i].streams.has(j) {
				e.silent[j] = time.Hour
			}
		}
	}
	return e
}
