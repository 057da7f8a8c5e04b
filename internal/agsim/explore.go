package agsim

import (
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Bounds keep an exploration finite: how far the record, and how many faults of each kind one history may see.
type Bounds struct {
	Epochs uint16 // highest epoch
	Writes uint8  // commits
	Faults uint8  // crashes of nodes and servers, expired leases
	Ops    uint8  // planned and forced failovers
	Wipes  uint8  // lost disks, and disks restored to an earlier moment
	Losses uint8  // transactions whose answer is lost and that may take effect later
	States int    // give up after so many worlds; 0: never
	Born   bool   // begin with the founding of the group instead of with a group that is well
	Forced bool   // let Ops be forced failovers as well
}

// spareCopies is how many copies may be made anew in one history.
const spareCopies = 3

// Report is what an exploration found.
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
	doTurn    what = iota // node i decides; j is what its clocks and network say
	doPerform             // what node i decided takes effect
	doSeal                // node j gives its seal to candidate i
	doStream              // one record, or the opening of the stream, from i to j
	doWrite
	doAck
	doCrash       // the node
	doServerCrash // its PostgreSQL only
	doExpire      // the lease runs out, and the agent notices
	doWipe
	doRestore // from a backup that lacks the last record
	doPlanned // an operator asks for j
	doForced
	doLose // node i gives up waiting for its transaction
	doLate // which takes effect now
)

// The ways a turn may find the world, as bits of event.j.
const (
	sawSilence = 1 << iota // of the leader, and of the members whose streams are closed
	sawNobody              // no other node answers
)

// Explore walks every history within the bounds, breadth first, and stops at the first world or event that breaks an invariant.
func (m *Model) Explore(b Bounds) (r Report) {
	begin := time.Now()
	defer func() { r.Elapsed = time.Since(begin) }()
	first := m.first(b)
	seed := maphash.MakeSeed()
	seen := map[uint64]struct{}{maphash.Comparable(seed, first): {}}
	type step struct {
		from int32
		ev   event
	}
	steps := []step{{from: -1}}
	type place struct {
		world World
		step  int32
	}
	level := []place{{first, 0}}
	var evs []event
	for len(level) > 0 {
		var next []place
		for _, p := range level {
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
				seen[h] = struct{}{}
				steps = append(steps, step{p.step, ev})
				next = append(next, place{w, int32(len(steps) - 1)})
			}
			if b.States > 0 && len(seen) >= b.States {
				r.States = len(seen)
				return r
			}
		}
		level = next
		r.Depth++
	}
	r.States, r.All = len(seen), true
	return r
}

func (m *Model) first(b Bounds) World {
	w := m.steady()
	if b.Born {
		w = m.born()
	}
	w.faults, w.writes, w.ops, w.wipes = b.Faults, b.Writes, b.Ops, b.Wipes
	w.losses = b.Losses
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

// tidy forgets what nobody can see any more, so that worlds that differ in nothing else are one.
func (m *Model) tidy(w *World) {
	for i := range m.n {
		n := &w.nodes[i]
		for j := range m.n {
			if !n.streams.has(j) {
				n.got[j] = 0
			}
		}
		if n.sealEp != w.epoch.epoch {
			n.seals, n.sealEp, n.sealLog, n.sealCpy = 0, 0, [maxMembers]wal{}, [maxMembers]copyID{}
		}
	}
}

// events lists what may happen next.
func (m *Model) events(w *World, b Bounds, evs []event) []event {
	if w.late.kind != idle {
		evs = append(evs, event{doLate, w.lateBy, 0})
	}
	for i := range m.n {
		if !m.group.Replicas[i].HasData() {
			continue
		}
		n, x := &w.nodes[i], uint8(i)
		if n.busy.kind != committing {
			evs = append(evs, event{doTurn, x, 0}, event{doTurn, x, sawSilence})
			if w.epoch.phase == promote && int(w.epoch.leader) == i+1 {
				evs = append(evs, event{doTurn, x, sawNobody})
			}
		}
		if n.busy.kind != idle {
			evs = append(evs, event{doPerform, x, 0})
		}
		if w.epoch.phase == seal && int(w.epoch.leader) == i+1 && n.sealEp == w.epoch.epoch && n.busy.kind != committing {
			for j := range m.n {
				if !n.seals.has(j) && m.group.Replicas[j].HasData() {
					evs = append(evs, event{doSeal, x, uint8(j)})
				}
			}
		}
		if n.busy.kind == committing && w.losses > 0 && w.late.kind == idle {
			evs = append(evs, event{doLose, x, 0})
		}
		if src, ok := m.mayStream(w, i); ok {
			evs = append(evs, event{doStream, uint8(src), x})
		}
		if n.server == writable {
			evs = m.serving(w, i, evs)
		}
		if w.faults > 0 {
			evs = append(evs, event{doCrash, x, 0})
		}
		if w.wipes > 0 && n.data == present {
			evs = append(evs, event{doWipe, x, 0})
			if m.logs.depth(n.log) > 1 {
				evs = append(evs, event{doRestore, x, 0})
			}
		}
		if w.ops > 0 && w.op == "" && int(w.epoch.leader) != i+1 && w.epoch.phase == lead {
			evs = append(evs, event{doPlanned, x, 0})
			if b.Forced {
				evs = append(evs, event{doForced, x, 0})
			}
		}
	}
	return evs
}

func (m *Model) serving(w *World, i int, evs []event) []event {
	x := uint8(i)
	if n := &w.nodes[i]; w.writes > 0 && n.opened == n.armed {
		evs = append(evs, event{doWrite, x, 0})
	}
	if c, _, ok := m.mayAck(w, i); ok && !m.logs.in(c, w.acked) {
		evs = append(evs, event{doAck, x, 0})
	}
	if w.faults > 0 {
		evs = append(evs, event{doServerCrash, x, 0}, event{doExpire, x, 0})
	}
	return evs
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
		}
		return m.turn(w, i, e)
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
	case doServerCrash:
		w.faults--
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
	case doLose:
		w.losses--
		w.late, w.lateBy, n.busy = n.busy, ev.i, pending{}
	case doLate:
		b := w.late
		w.late, w.lateBy = pending{}, 0
		m.commit(w, i, b)
	case doPlanned, doForced:
		w.ops--
		w.op, w.opTo, w.opEpoch = ag.OpPlanned, ev.i+1, w.epoch.epoch
		if ev.what == doForced {
			w.op = ag.OpForced
		}
	}
	return p
}

// env is what node i's turn finds, as the bits say.
func (m *Model) env(w *World, i int, saw uint8) env {
	e := env{epoch: w.epoch, state: w.state, released: w.released, sealed: time.Hour}
	if saw&sawNobody == 0 {
		e.reach = (1<<m.n - 1) &^ one(i)
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

// story tells a history the way an incident is told.
func (m *Model) story(b Bounds, path []event) string {
	var s strings.Builder
	w := m.first(b)
	fmt.Fprintf(&s, "%d members, %s; %s\n", m.n, m.group.CommitRule, m.recordLine(&w))
	for k, ev := range path {
		fmt.Fprintf(&s, "%3d. %s\n", k+1, m.tell(&w, ev))
	}
	return s.String()
}

// tell makes the event happen and says what it was.
func (m *Model) tell(w *World, ev event) (line string) {
	i, j := names[ev.i], names[ev.j%maxMembers]
	before := *w
	defer func() {
		if v, ok := recover().(violation); ok {
			line += "   <- " + string(v)
		}
	}()
	busy := before.nodes[ev.i].busy
	switch ev.what {
	case doTurn, doExpire:
		line = fmt.Sprintf("%s decides", i)
	case doPerform:
		line = fmt.Sprintf("%s performs: %s", i, kinds[busy.kind])
	case doSeal:
		line = fmt.Sprintf("%s  answers %s for epoch %d at %s", j, i, w.epoch.epoch, m.logs.position(w.nodes[ev.j].log))
	case doStream:
		line = fmt.Sprintf("%s  draws from %s", j, i)
	case doWrite:
		line = fmt.Sprintf("%s  writes", i)
	case doAck:
		c, _, _ := m.mayAck(w, int(ev.i))
		line = fmt.Sprintf("%s  acknowledges %s", i, m.logs.position(c))
	case doLate:
		line = fmt.Sprintf("what %s gave up takes effect", i)
	default:
		line = [...]string{
			doCrash: "%s  crashes", doServerCrash: "%s  loses its server", doWipe: "%s  loses its disk", doRestore: "%s  is restored to an earlier moment", doPlanned: "an operator plans a failover to %s",
			doForced: "an operator forces a failover to %s", doLose: "%s  gets no answer from the store",
		}[ev.what]
		line = fmt.Sprintf(line, i)
	}
	p := m.apply(w, ev)
	switch ev.what {
	case doTurn, doExpire:
		line = fmt.Sprintf("%s  %s: %s", i, p.Rule, p.Because)
		if ev.what == doExpire {
			line = fmt.Sprintf("%s  loses its lease; %s", i, line)
		}
	case doStream:
		if w.nodes[ev.j].refused {
			line += ", which refuses it: the histories differ"
		} else {
			line += " up to " + m.logs.position(w.nodes[ev.j].log).String()
		}
	case doLate:
		line += ": " + m.recordLine(w)
	case doPerform:
		if before.epoch != w.epoch || before.state != w.state {
			line = fmt.Sprintf("%s  commits: %s", i, m.recordLine(w))
		} else if busy.kind == committing && !busy.release {
			line = fmt.Sprintf("%s  loses the comparison: the record has moved", i)
		} else {
			line = fmt.Sprintf("%s  ends its %s: %s", i, kinds[busy.kind], m.nodeLine(w, int(ev.i)))
		}
	default: // said above, before it happened
	}
	m.tidy(w)
	m.check(w)
	return line
}

func (m *Model) recordLine(w *World) string {
	s := fmt.Sprintf("epoch %d %s %s", w.epoch.epoch, phases[w.epoch.phase], names[w.epoch.leader-1])
	if w.epoch.phase != seal {
		s += fmt.Sprintf(" on timeline %d", w.epoch.tli)
	}
	var v set
	for j, c := range w.state.v {
		if c != 0 {
			v |= one(j)
		}
	}
	return s + fmt.Sprintf(", V = %v, k = %d", v, w.state.k)
}

func (m *Model) nodeLine(w *World, i int) string {
	n := &w.nodes[i]
	s := fmt.Sprintf("%s at %s", serverStates[n.server], m.logs.position(n.log))
	if n.server == writable {
		s += fmt.Sprintf(", waits for %d of %v", n.sync.n, n.sync.p)
		if n.proven {
			s += fmt.Sprintf(", proven with barrier %v", ag.LSN(n.barrier))
		}
	}
	return s
}
