package agsim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// tick is the simulator's grain of time.
const tick = 100 * time.Millisecond

// Times of a run, in ticks.
const (
	troubled = 1500 // the duration of the faults
	patience = 1500 // the time within which a healed group must have recovered
)

func ticks(d time.Duration) int { return int(d / tick) }

// Sim is one run.
type Sim struct {
	m      *Model
	w      World
	rng    *rand.Rand
	doubt  *rand.Rand // of suspicions
	moves  *rand.Rand // of operators who change the members and the timing
	heirs  *rand.Rand // of machines that are lost, and replaced
	losses *rand.Rand // of quorums that are lost, which changes nothing in the run
	lags   *rand.Rand // of copies that have long to replay
	now    int
	odds   odds
	trace  func(string)
	well   bool // no faults any more

	epochRev, stateRev, leadRev int
	late                        []lateCommit

	turns  []int   // of a tick
	events []event // of a session
	mail   []ack

	nodes     [maxMembers]simNode
	rate      [maxMembers]float64 // of the members' clocks
	fence     time.Duration       // that a host needs
	external  bool                // a removed member still reaches the store
	removeAt  int                 // the next look of the operator who removes a member
	giveUpAt  int
	returns   [maxMembers]int // when a removed member joins again
	replaced  set             // members that are taken out to be replaced, or were
	cut       [maxMembers]set // links between members that carry no traffic
	reject    [maxMembers]set // links on which connections are ended and refused, which looks like a death
	cutStore  set
	storeDown int // until

	seq       int // of /state
	past      []moment
	backwards bool             // the store has gone back in time
	seen      [maxMembers]mark // durable
	tale      tale
}

// simNode is the clocks' and timers' state of a node.
type simNode struct {
	downUntil, pausedUntil int
	seenAt                 int
	seenEpoch, seenLead    int
	epochSeen              uint16 // the epoch of the record that was read last
	epochAt                int    // when it was first read
	last                   env
	want                   uint16        // the epoch whose lease is being renewed
	renewAt                int           // the next renewal
	deadline               time.Duration // of the lease, by the node's clock
	granted                uint16        // the epoch of that lease
	progress, lastProgress int           // of a candidate or promotion: renewed when it has changed, as by Agent.progressOf in package agent
	hung                   bool          // its promotion makes no progress
	sealedAt               int
	heard                  [maxMembers]int // last feedback of a member's stream
	quietAt                int             // its last acknowledgement of a heartbeat, or its start
	first                  [maxMembers]int // when each voter acknowledged the epoch in firstEp for the first time
	firstEp, settledEp     uint16          // settledEp: its outgoing leader has ended
	acked                  [maxMembers]int // as a primary: when the newest heartbeat was sent that each voter acknowledged
	beatEp                 uint16          // the epoch of the last heartbeats heard
	deathAt                int             // since when the member that sent them looks dead; 0: it does not
	deathLead              int             // revision of /lead when that was found
	suspectsUntil          int             // it takes the leader for silent, rightly or not
	performAt              int
	line                   string
	open                   bool
	illUntil, resumeAt     int
	stoodAt                int
	backAt, fenceAt        int // of an agent that restarts: when it is back, and for how long the keeper waits
}

// lateCommit is a transaction whose author no longer waits for the answer.
type lateCommit struct {
	who                         int
	at                          int
	b                           pending
	epochRev, stateRev, leadRev int
	heir                        bool // its author has a successor, or will have: that one's changes do not void it
}

// Run plays one history and returns the broken invariant, or nil. Equal seeds are equal histories.
func (m *Model) Run(seed uint64, trace func(string)) (err error) {
	s := &Sim{m: m, rng: rand.New(rand.NewPCG(seed, 0)), trace: trace}
	m.votes, m.timed, m.clients = true, true, true
	m.seenBy = func(i int) env { return s.nodes[i].last }
	m.led = map[uint16]bool{1: true}
	s.w = m.steady()
	if s.chance(3000) {
		s.w = m.born()
	}
	if s.draw(); m.only != (odds{}) {
		s.odds = m.only
	}
	s.losses, s.lags = rand.New(rand.NewPCG(seed, 4)), rand.New(rand.NewPCG(seed, 5))
	s.drawSuspicion(seed)
	s.drawMoves(seed)
	s.drawReplacements(seed)
	if seed%5 == 4 && m.only == (odds{}) {
		s.odds.slow = 100
	}
	m.altered = s.odds.alter+s.odds.remove+s.odds.profile+s.odds.strict+s.odds.replace > 0
	m.stories = s.odds.stories > 0
	m.loose = s.odds.suspend > 0 || s.odds.distrust > 0 || m.altered
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
		s.nodes[i].deadline, s.nodes[i].granted = profiles[0].Lease, 1
		s.rate[i] = 1 + (s.rng.Float64()*2-1)*ag.Rho
		if s.chance(5000) { // at one end of what is permitted
			s.rate[i] = 1 + float64(s.rng.IntN(2)*2-1)*ag.Rho
		}
	}
	for s.now = 0; s.now < troubled; s.now++ {
		s.trouble()
		s.suspicion()
		s.move()
		s.tick()
	}
	s.heal()
	if s.backwards {
		return nil
	}
	for end := s.now + patience; s.now < end; s.now++ {
		s.tick()
		if s.atRest() == "" {
			return nil
		}
	}
	return fmt.Errorf("healed for %v and not well: %s", patience*tick, s.atRest())
}

// tick lets a tenth of a second pass.
func (s *Sim) tick() {
	m := s.m
	s.remember()
	for k := 0; k < len(s.late); k++ {
		if l := s.late[k]; l.at <= s.now {
			s.late = append(s.late[:k], s.late[k+1:]...)
			l.b.staleEpoch, l.b.staleState, l.b.staleLead = l.epochRev != s.epochRev, l.stateRev != s.stateRev, l.leadRev != s.leadRev
			s.commit(l.who, l.b)
			k--
		}
	}
	s.tell()
	s.lag()
	s.lostQuorum()
	s.acks()
	if s.w.letter.kind != noLetter && s.chance(200) { // some are very late
		m.arrive(&s.w, s.chance(3000))
	}
	for _, i := range s.order() {
		n, t := &s.w.nodes[i], &s.nodes[i]
		s.person(i)
		s.inPlace(i)
		if n.inPlace == away {
			continue
		}
		if !n.up {
			if t.downUntil > s.now {
				continue
			}
			n.up = true
			t.seenAt, t.quietAt, t.epochSeen = s.now, s.now, 0
		}
		s.timers(i)
		if t.pausedUntil <= s.now {
			s.agent(i)
		}
		s.beats(i)
		s.clients(i)
		m.check(&s.w)
	}
	for j := range m.n {
		if src, ok := m.mayStream(&s.w, j); ok && s.linked(src, j) && s.chance(8000) {
			if s.chance(s.odds.tear) && m.mayTear(&s.w, j) {
				s.w.nodes[j].half = true
				continue
			}
			if s.chance(s.odds.delay/10) && s.w.letter.kind == noLetter && s.w.nodes[src].got[j] != 0 && !s.well {
				m.delay(&s.w, src, j, flushed)
				continue
			}
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
	s.sessions()
	s.exclusive()
}

// order returns the nodes in the order of their turns in this tick.
func (s *Sim) order() []int {
	s.turns = s.turns[:0]
	for i := range s.m.n {
		s.turns = append(s.turns, i)
	}
	s.rng.Shuffle(len(s.turns), func(i, j int) { s.turns[i], s.turns[j] = s.turns[j], s.turns[i] })
	return s.turns
}

func (s *Sim) linked(i, j int) bool {
	return i == j || s.w.nodes[i].up && s.w.nodes[j].up && !s.cut[i].has(j) && !s.reject[i].has(j) &&
		!s.nodes[i].last.settings.removed.has(j) && !s.nodes[j].last.settings.removed.has(i)
}

// elapsed returns the time that node i's clock has measured since a moment.
func (s *Sim) elapsed(i, since int) time.Duration {
	return time.Duration(float64(time.Duration(s.now-since)*tick) * s.rate[i])
}

func (s *Sim) quorum(i int) bool {
	return !s.cutStore.has(i) && s.storeDown <= s.now && (s.external || !s.w.settings.removed.has(i))
}

// agent performs the step of node i's agent in this tick, if any.
func (s *Sim) agent(i int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	switch {
	case s.w.epoch.phase == seal: // a candidate that waits for a better answer makes no progress
		t.progress = n.seals.size()
	case !t.hung:
		t.progress = maxMembers + 1 + s.now // any other activity continues
	}
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
	if s.m.settles(&s.w, i, e) {
		t.settledEp = e.epoch.epoch
	}
	s.sayPlan(i, p)
	if n.busy.kind != was && n.busy.kind != idle {
		t.performAt, t.hung = s.now+s.rng.IntN(4), false
		if n.busy.kind == promoting && s.chance(s.odds.hang) && !s.well {
			s.say("%s's promotion hangs", names[i])
			t.performAt, t.hung = s.now+s.rng.IntN(300), true
		}
		if n.busy.kind != committing {
			t.performAt += s.rng.IntN(20)
		}
		if n.busy.kind == committing && s.chance(s.odds.lostAnswer) && !s.well {
			s.late = append(s.late, lateCommit{i, s.now + s.rng.IntN(30), n.busy, s.epochRev, s.stateRev, s.leadRev, false})
			n.busy = pending{}
		}
	}
	if p.Rule == ag.RuleSeal || p.Rule == ag.RuleFetch {
		for _, id := range p.Actions[0].(ag.AskSeals).Members {
			if j := index(id); s.linked(i, j) && n.sealEp == s.w.epoch.epoch && s.nodes[j].pausedUntil <= s.now && s.chance(7000) && !n.seals.has(j) {
				if s.w.letter.kind == noLetter && s.chance(s.odds.delay) && !s.well {
					s.m.delay(&s.w, i, j, sealGiven)
					continue
				}
				s.m.seal(&s.w, i, j)
			}
		}
	}
}

// perform ends the pending action of node i, unless the network prevents it or the agent has seen the epoch end.
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
	case b.kind == handing && s.chance(s.odds.giveUp) && !s.well:
		s.say("%s gives the planned failover up", names[i])
		s.m.giveUp(&s.w, i)
		return
	case b.kind == handing && n.server == down && s.chance(s.odds.lostAnswer) && !s.well:
		s.late = append(s.late, lateCommit{i, s.now + s.rng.IntN(30), s.m.lose(&s.w, i), s.epochRev, s.stateRev, s.leadRev, false})
		return
	}
	st := s.w.state
	s.m.perform(&s.w, i)
	s.bump(before, st)
	s.void(i, b)
	if b.release {
		s.leadRev++
	}
	if s.w.epoch != before {
		s.say("%s  commits: %s", names[i], s.m.recordLine(&s.w))
	}
}

func (s *Sim) commit(i int, b pending) {
	before, st := s.w.epoch, s.w.state
	if s.m.commit(&s.w, i, b) {
		s.bump(before, st)
		s.void(i, b)
		s.say("%s  committed, late: %s", names[i], s.m.recordLine(&s.w))
	}
}

// void drops the votes of node i that are still on their way once one was withdrawn. The store makes the changes of a
// node one after the other, and a later one voids an earlier one that is under way.
func (s *Sim) void(i int, b pending) {
	if b.unvote && s.w.votes[i] == 0 || b.vote && s.w.votes[i] == b.at { // a claim that compares the vote comes too late
		for k := range s.late {
			s.late[k].b.staleVotes = s.late[k].b.staleVotes || s.late[k].b.votes.has(i)
		}
	}
	if b.unvote && s.w.votes[i] == 0 && s.m.flaw != flawLateVote {
		s.late = slices.DeleteFunc(s.late, func(l lateCommit) bool { return l.who == i && l.b.vote && !l.heir })
	}
}

func (s *Sim) bump(e epochRec, st stateRec) {
	if s.w.epoch != e {
		s.epochRev++
	}
	if s.w.state != st {
		s.stateRev++
		s.seq++
	}
}

// lease sets the epoch whose lease the agent's renewer should hold.
func (s *Sim) lease(i int, e env) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	if e.noQuorum {
		return
	}
	alive := n.server == writable || e.epoch.phase != lead || n.busy.kind == handing
	if int(e.epoch.leader) != i+1 || e.released || !alive || n.inPlace == away {
		t.want = 0
		return
	}
	if t.want != e.epoch.epoch {
		t.want, t.renewAt, t.lastProgress = e.epoch.epoch, s.now, -1
		s.timers(i)
	}
}

// env returns the information that node i has.
func (s *Sim) env(i int) env {
	n, t := &s.w.nodes[i], &s.nodes[i]
	e := t.last
	e.untrusted = s.quorum(i) && !s.judge(i)
	switch {
	case s.quorum(i) && !e.untrusted:
		e = env{
			epoch: s.w.epoch, state: s.w.state, released: s.w.released, votes: s.w.votes, against: s.w.against, settings: s.w.settings,
			waited: s.w.waited, declared: s.w.declared, observer: s.w.observer,
			restarting: s.w.restarting, incarnation: s.w.incarnation, settled: s.w.settled,
		}
		if t.seenEpoch != s.epochRev || t.seenLead != s.leadRev {
			first := t.seenEpoch == 0 && t.seenLead == 0
			t.seenEpoch, t.seenLead, t.seenAt = s.epochRev, s.leadRev, s.now
			if first && s.m.flaw == flawEarlyWatch {
				t.seenAt -= troubled
			}
		}
	case e.epoch.epoch == 0: // nothing was read yet since its start
		e = env{epoch: epochRec{leader: 1}, state: stateRec{leader: 1}, untrusted: e.untrusted}
	}
	e.noQuorum = !s.quorum(i) || e.untrusted
	e.silence, e.quiet = s.elapsed(i, t.seenAt), s.elapsed(i, t.quietAt)
	if t.epochSeen != e.epoch.epoch {
		t.epochSeen, t.epochAt = e.epoch.epoch, s.now
	}
	e.since, e.superseded = s.elapsed(i, t.epochAt), s.superseded(i, e.epoch)
	e.evidence, e.unheard = s.death(i, e), s.suspects(i, e)
	e.reach = 0
	for j := range s.m.n {
		if j == i {
			continue
		}
		if s.linked(i, j) && s.nodes[j].pausedUntil <= s.now {
			e.reach |= one(j)
		}
		e.silent[j] = time.Duration(s.now-t.heard[j]) * tick
		if !s.w.nodes[j].up || s.reject[i].has(j) {
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

// atRest returns the reason why the group has not recovered yet, or "".
func (s *Sim) atRest() string {
	w := &s.w
	if w.epoch.phase != lead {
		return fmt.Sprintf("epoch %d is in %s", w.epoch.epoch, phases[w.epoch.phase])
	}
	p := int(w.epoch.leader) - 1
	if n := &w.nodes[p]; n.server != writable || !s.nodes[p].open || n.lease != w.epoch.epoch || !s.m.answers(w, p) {
		return fmt.Sprintf("%s leads and is not open: %s", names[p], s.m.nodeLine(w, p))
	}
	for j := range s.m.n {
		n := &w.nodes[j]
		if j == p || !s.m.group.Replicas[j].HasData() || w.settings.removed.has(j) {
			continue
		}
		if w.state.v[j] == 0 || w.state.v[j] != n.copy || !w.nodes[p].streams.has(j) {
			return fmt.Sprintf("%s is not in V, which is that of: %s", names[j], s.m.recordLine(w))
		}
	}
	if n, _ := s.m.groupWith(w.settings).CommitTarget(s.m.copiesIn(w.settings) - 1); int(w.state.k) != n || w.state.size() != s.m.copiesIn(w.settings)-1 {
		return fmt.Sprintf("k is %d, not %d", w.state.k, n)
	}
	return ""
}

// sayPlan tells the decision of node i, unless it was the last one that was told of it.
func (s *Sim) sayPlan(i int, p ag.Plan) {
	if s.trace == nil {
		return
	}
	t, line := &s.nodes[i], fmt.Sprintf("%s  %s: %s", names[i], p.Rule, p.Because)
	if line != t.line {
		t.line = line
		s.say("%s", line)
	}
}

func (s *Sim) say(format string, args ...any) {
	if s.trace != nil {
		s.trace(fmt.Sprintf("%7.1fs  ", float64(s.now)*tick.Seconds()) + fmt.Sprintf(format, args...))
	}
}
