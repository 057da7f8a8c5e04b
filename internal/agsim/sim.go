package agsim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// tick is the simulator's grain of time.
const tick = 100 * time.Millisecond

// Times of a run, in ticks.
const (
	troubled = 1500 // how long there are faults
	patience = 1500 // how long a healed group may take to be well again
)

func ticks(d time.Duration) int { return int(d / tick) }

// odds are the chances per tick, in 1/10000, of what may go wrong. Each run draws its own, most of them zero: histories of few
// kinds of faults go further than histories of all (swarm testing).
type odds struct {
	crash, serverCrash, pause, cutStore, cutPeer, storeDown, wipe, planned, forced, suspend, lostAnswer, badRewind int
}

// Sim is one run.
type Sim struct {
	m     *Model
	w     World
	rng   *rand.Rand
	now   int
	odds  odds
	trace func(string)
	well  bool // no faults any more

	epochRev, stateRev, leadRev int
	late                        []lateCommit

	nodes     [maxMembers]simNode
	cut       [maxMembers]set // links between members that carry nothing
	cutStore  set
	storeDown int // until
}

// simNode is what clocks and timers know of a node.
type simNode struct {
	downUntil, pausedUntil int
	seenAt                 int
	seenEpoch, seenLead    int
	last                   env
	want                   uint16 // the epoch whose lease is being renewed
	renewAt, deadline      int
	sealedAt               int
	heard                  [maxMembers]int // last feedback of a member's stream
	performAt              int
	line                   string
	open                   bool
}

// lateCommit is a transaction whose answer its author has given up on.
type lateCommit struct {
	who                         int
	at                          int
	b                           pending
	epochRev, stateRev, leadRev int
}

// Run plays one history and returns what went wrong, nil if nothing did. Equal seeds are equal histories.
func (m *Model) Run(seed uint64, trace func(string)) (err error) {
	s := &Sim{m: m, rng: rand.New(rand.NewPCG(seed, 0)), trace: trace}
	s.w = m.steady()
	if s.chance(3000) {
		s.w = m.born()
	}
	s.draw()
	m.loose = s.odds.suspend > 0
	defer func() {
		switch r := recover().(type) {
		case nil:
		case violation:
			err = fmt.Errorf("after %v: %s", time.Duration(s.now)*tick, string(r))
		default:
			panic(r)
		}
	}()
	for i := range m.n {
		s.nodes[i].deadline = ticks(5 * time.Second)
	}
	for s.now = 0; s.now < troubled; s.now++ {
		s.trouble()
		s.tick()
	}
	s.heal()
	for end := s.now + patience; s.now < end; s.now++ {
		s.tick()
		if s.atRest() == "" {
			return nil
		}
	}
	return fmt.Errorf("healed for %v and not well: %s", patience*tick, s.atRest())
}

func (s *Sim) chance(of10000 int) bool { return s.rng.IntN(10000) < of10000 }

func (s *Sim) draw() {
	for _, o := range []struct {
		p   *int
		max int
	}{
		{&s.odds.crash, 40},
		{&s.odds.serverCrash, 40},
		{&s.odds.pause, 40},
		{&s.odds.cutStore, 40},
		{&s.odds.cutPeer, 60},
		{&s.odds.storeDown, 20},
		{&s.odds.wipe, 10},
		{&s.odds.planned, 80},
		{&s.odds.forced, 10},
		{&s.odds.suspend, 20},
		{&s.odds.lostAnswer, 3000},
		{&s.odds.badRewind, 3000},
	} {
		if s.chance(5000) {
			*o.p = 1 + s.rng.IntN(o.max)
		}
	}
	if s.chance(5000) {
		s.odds.forced = 0
	}
}

// trouble draws this tick's faults.
func (s *Sim) trouble() {
	m, o := s.m, s.odds
	i, j := s.rng.IntN(m.n), s.rng.IntN(m.n)
	long := 1 + s.rng.IntN(300)
	n := &s.w.nodes[i]
	data := m.group.Replicas[i].HasData()
	switch {
	case s.chance(o.crash):
		s.say("%s crashes", names[i])
		s.crash(i, long)
	case s.chance(o.serverCrash) && n.server != down:
		s.say("%s loses its server", names[i])
		s.w.stop(i)
		if n.busy.kind != committing {
			n.busy = pending{}
		}
	case s.chance(o.pause):
		s.say("%s's agent hangs", names[i])
		s.nodes[i].pausedUntil = s.now + long
	case s.chance(o.cutStore):
		s.cutStore ^= one(i)
	case s.chance(o.cutPeer):
		s.cut[i] ^= one(j)
		s.cut[j] = s.cut[j]&^one(i) | s.cut[i]>>j&1<<i
	case s.chance(o.storeDown):
		s.storeDown = s.now + long
	case s.chance(o.wipe) && data && n.data == present && s.spare(i):
		s.crash(i, long)
		if depth := m.logs.depth(n.log); s.chance(5000) && depth > 1 {
			s.say("%s's disk is restored to an earlier moment", names[i])
			m.restore(&s.w, i, depth-uint16(s.rng.IntN(min(20, int(depth)))))
		} else {
			s.say("%s loses its disk", names[i])
			s.w.wipe(i)
		}
		n.up = false
	case s.chance(o.planned) && s.w.op == "" && data && s.w.epoch.phase == lead:
		s.say("an operator plans a failover to %s", names[i])
		s.w.op, s.w.opTo, s.w.opEpoch = ag.OpPlanned, uint8(i+1), s.w.epoch.epoch
	case s.chance(o.forced) && data && n.data == present:
		s.say("an operator forces a failover to %s", names[i])
		s.w.op, s.w.opTo, s.w.opEpoch = ag.OpForced, uint8(i+1), s.w.epoch.epoch
	case s.chance(o.suspend) && data:
		s.w.suspended ^= one(i)
	}
}

// spare reports whether the group can do without the disk of node i and without a person. It cannot while the record names its copy
// alone, which it does from the moment of a promotion until others have caught up.
func (s *Sim) spare(i int) bool {
	w := &s.w
	return int(w.state.leader) != i+1 && (int(w.epoch.leader) != i+1 || w.epoch.phase == promote && w.nodes[i].server != writable)
}

func (s *Sim) crash(i, long int) {
	s.w.crash(i)
	s.w.nodes[i].up = false
	line := s.nodes[i].line
	s.nodes[i] = simNode{downUntil: s.now + long, line: line}
}

func (s *Sim) heal() {
	s.say("healed")
	s.well = true
	s.cutStore, s.cut, s.storeDown, s.w.suspended, s.w.op = 0, [maxMembers]set{}, 0, 0, ""
	for i := range s.m.n {
		s.nodes[i].pausedUntil, s.nodes[i].downUntil = 0, min(s.nodes[i].downUntil, s.now)
	}
}

// tick lets a tenth of a second pass.
func (s *Sim) tick() {
	m := s.m
	for k := 0; k < len(s.late); k++ {
		if l := s.late[k]; l.at <= s.now {
			s.late = append(s.late[:k], s.late[k+1:]...)
			l.b.staleEpoch, l.b.staleState, l.b.staleLead = l.epochRev != s.epochRev, l.stateRev != s.stateRev, l.leadRev != s.leadRev
			s.commit(l.who, l.b)
			k--
		}
	}
	for _, i := range s.rng.Perm(m.n) {
		n, t := &s.w.nodes[i], &s.nodes[i]
		if !n.up {
			if t.downUntil > s.now {
				continue
			}
			n.up = true
			t.seenAt = s.now
		}
		s.timers(i)
		if t.pausedUntil <= s.now {
			s.agent(i)
		}
		s.clients(i)
		m.check(&s.w)
	}
	for j := range m.n {
		if src, ok := m.mayStream(&s.w, j); ok && s.linked(src, j) && s.chance(8000) {
			for range 1 + s.rng.IntN(6) {
				if m.stream(&s.w, j, src); m.logs.depth(s.w.nodes[j].log) == m.logs.depth(s.w.nodes[src].log) {
					break
				}
				if src, ok = m.mayStream(&s.w, j); !ok {
					break
				}
			}
		}
		for i := range m.n {
			if s.w.nodes[i].streams.has(j) && s.linked(i, j) {
				s.nodes[i].heard[j] = s.now
			}
		}
	}
	s.exclusive()
}

func (s *Sim) linked(i, j int) bool {
	return i == j || s.w.nodes[i].up && s.w.nodes[j].up && !s.cut[i].has(j)
}

// timers are the keeper's deadline, the lease, and its renewal, which goes on beside the loop.
func (s *Sim) timers(i int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	p := ag.Profiles["default"]
	if s.m.flaw == flawLongLease && n.lease != 0 {
		t.deadline = s.now + 1
	}
	if n.lease != 0 && s.now >= t.deadline {
		n.lease = 0
	}
	if n.armed != 0 && n.server == writable && s.now >= t.deadline+ticks(p.Fence)-1 {
		s.say("%s's keeper fences", names[i])
		s.w.fence(i)
	}
	if t.want == 0 || t.pausedUntil > s.now || t.renewAt > s.now || !s.quorum(i) {
		return
	}
	t.renewAt = s.now + ticks(p.Heart)
	if s.w.epoch.epoch != t.want || int(s.w.epoch.leader) != i+1 || s.w.released {
		t.want, n.lease = 0, 0
		return
	}
	n.lease = t.want
	t.deadline = s.now + ticks(p.Lease) - s.rng.IntN(3)
	s.leadRev++
	for j := range s.m.n {
		o := &s.w.nodes[j].busy
		o.staleLead = o.staleLead || o.kind != idle
	}
}

func (s *Sim) quorum(i int) bool { return !s.cutStore.has(i) && s.storeDown <= s.now }

// agent is what the agent of node i does in this tick, if anything.
func (s *Sim) agent(i int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	if n.busy.kind != idle && t.performAt <= s.now {
		s.perform(i)
	}
	if n.busy.kind == committing || !s.chance(6000) {
		return
	}
	e := s.env(i)
	s.lease(i, e)
	was := n.busy.kind
	p := s.m.turn(&s.w, i, e)
	t.open = p.Open
	if line := fmt.Sprintf("%s  %s: %s", names[i], p.Rule, p.Because); s.trace != nil && line != t.line {
		t.line = line
		s.say("%s", line)
	}
	if n.busy.kind != was && n.busy.kind != idle {
		t.performAt = s.now + s.rng.IntN(4)
		if n.busy.kind != committing {
			t.performAt += s.rng.IntN(20)
		}
		if n.busy.kind == committing && s.chance(s.odds.lostAnswer) && !s.well {
			s.late = append(s.late, lateCommit{i, s.now + s.rng.IntN(30), n.busy, s.epochRev, s.stateRev, s.leadRev})
			n.busy = pending{}
		}
	}
	if p.Rule == ag.RuleSeal {
		for _, id := range p.Actions[0].(ag.AskSeals).Members {
			if j := index(id); s.linked(i, j) && n.sealEp == s.w.epoch.epoch && s.nodes[j].pausedUntil <= s.now && s.chance(7000) && !n.seals.has(j) {
				s.m.seal(&s.w, i, j)
			}
		}
	}
}

// perform ends what node i is in the middle of, unless the network prevents it or the agent has seen the epoch end.
func (s *Sim) perform(i int) {
	n := &s.w.nodes[i]
	b := n.busy
	before := s.w.epoch
	switch {
	case b.kind == committing && !s.quorum(i), b.kind == handing && !s.quorum(i):
		n.busy = pending{}
		return
	case b.kind == rewinding && s.chance(s.odds.badRewind) && !s.well:
		n.busy = pending{}
		n.data, n.noRewind = present, true // it refused before it touched anything
		return
	case (b.kind == rewinding || b.kind == seeding) && !s.linked(i, int(b.other)-1):
		n.busy = pending{}
		return
	}
	st := s.w.state
	s.m.perform(&s.w, i)
	s.bump(before, st)
	if s.w.epoch != before {
		s.say("%s  commits: %s", names[i], s.m.recordLine(&s.w))
	}
}

func (s *Sim) commit(i int, b pending) {
	before, st := s.w.epoch, s.w.state
	if s.m.commit(&s.w, i, b) {
		s.bump(before, st)
		s.say("%s  committed, late: %s", names[i], s.m.recordLine(&s.w))
	}
}

func (s *Sim) bump(e epochRec, st stateRec) {
	if s.w.epoch != e {
		s.epochRev++
	}
	if s.w.state != st {
		s.stateRev++
	}
}

// lease wishes for what the agent's renewer should hold.
func (s *Sim) lease(i int, e env) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	if e.noQuorum {
		return
	}
	alive := n.server == writable || e.epoch.phase != lead || n.busy.kind == handing
	if int(e.epoch.leader) != i+1 || e.released || !alive {
		t.want = 0
		return
	}
	if t.want != e.epoch.epoch {
		t.want, t.renewAt = e.epoch.epoch, s.now
		s.timers(i)
	}
}

// env is what node i sees.
func (s *Sim) env(i int) env {
	n, t := &s.w.nodes[i], &s.nodes[i]
	e := t.last
	if s.quorum(i) {
		e = env{epoch: s.w.epoch, state: s.w.state, released: s.w.released}
		if t.seenEpoch != s.epochRev || t.seenLead != s.leadRev {
			t.seenEpoch, t.seenLead, t.seenAt = s.epochRev, s.leadRev, s.now
		}
	} else if e.epoch.epoch == 0 { // nothing read yet since it started
		e = env{epoch: epochRec{leader: 1}, state: stateRec{leader: 1}, noQuorum: true}
	}
	e.noQuorum = !s.quorum(i)
	e.silence = time.Duration(s.now-t.seenAt) * tick
	e.reach = 0
	for j := range s.m.n {
		if j == i {
			continue
		}
		if s.linked(i, j) && s.nodes[j].pausedUntil <= s.now {
			e.reach |= one(j)
		}
		e.silent[j] = time.Duration(s.now-t.heard[j]) * tick
		if !s.w.nodes[j].up {
			e.refused |= one(j)
		}
	}
	if n.seals == 0 || n.sealEp != e.epoch.epoch {
		t.sealedAt = s.now
	}
	e.sealed = time.Duration(s.now-t.sealedAt) * tick
	t.last = e
	return e
}

// clients write to a server that is open, and are told.
func (s *Sim) clients(i int) {
	n := &s.w.nodes[i]
	if s.nodes[i].open && s.chance(3000) {
		s.m.write(&s.w, i)
	}
	if c, by, ok := s.m.mayAck(&s.w, i); ok && s.chance(7000) {
		if n.lease != 0 || s.w.epoch.epoch != n.armed || s.chance(2000) {
			s.m.checkAck(&s.w, i, c, by)
		}
	}
}

// exclusive: two servers never both take writes under a lease they believe in, unless an operator forced it (S3).
func (s *Sim) exclusive() {
	if s.w.epoch.forced {
		return
	}
	first := -1
	for i := range s.m.n {
		n := &s.w.nodes[i]
		if n.server != writable || n.lease == 0 || n.opened != n.armed || n.armed < s.w.ackEpoch {
			continue
		}
		if first >= 0 {
			fail("%s and %s both take writes, in epochs %d and %d (S3)", names[first], names[i], s.w.nodes[first].armed, n.armed)
		}
		first = i
	}
}

// atRest says what is missing until the group is well, "" if nothing is.
func (s *Sim) atRest() string {
	w := &s.w
	if w.epoch.phase != lead {
		return fmt.Sprintf("epoch %d is in %s", w.epoch.epoch, phases[w.epoch.phase])
	}
	p := int(w.epoch.leader) - 1
	if n := &w.nodes[p]; n.server != writable || !s.nodes[p].open || n.lease != w.epoch.epoch {
		return fmt.Sprintf("%s leads and is not open: %s", names[p], s.m.nodeLine(w, p))
	}
	for j := range s.m.n {
		n := &w.nodes[j]
		if j == p || !s.m.group.Replicas[j].HasData() {
			continue
		}
		if w.state.v[j] == 0 || w.state.v[j] != n.copy || !w.nodes[p].streams.has(j) {
			return fmt.Sprintf("%s is not in V, which is that of: %s", names[j], s.m.recordLine(w))
		}
	}
	if n, _ := s.m.group.CommitTarget(s.m.withData() - 1); int(w.state.k) != n {
		return fmt.Sprintf("k is %d, not %d", w.state.k, n)
	}
	return ""
}

func (s *Sim) say(format string, args ...any) {
	if s.trace != nil {
		s.trace(fmt.Sprintf("%7.1fs  ", float64(s.now)*tick.Seconds()) + fmt.Sprintf(format, args...))
	}
}
