package agsim

import (
	"math/rand/v2"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// This file is what operators ask for. A primary's agent hands over to another node, or restarts while its server keeps
// running. Each can be given up, and can be cut short by a death, at every step. And the configuration changes.

// handOver runs a planned failover in two steps: stop with nothing left to send, then name the successor.
func (m *Model) handOver(w *World, i int) {
	n := &w.nodes[i]
	to := int(n.busy.other) - 1
	if n.server == writable {
		if w.state.v[to] == 0 || !n.streams.has(to) || n.gotCopy[to] != w.nodes[to].copy || n.got[to] != m.logs.depth(n.log) && m.flaw != flawHandLag {
			n.busy, w.op = pending{}, ""
			return
		}
		b := n.busy
		w.stop(i)
		n.busy = b
		return
	}
	b := m.successor(w, i)
	n.busy, w.op = pending{}, ""
	if m.commit(w, i, b) {
		n.lease, n.armed = 0, 0
	}
}

// syncSet is View.HandoverSyncSet in package ag, of the view that is decided upon.
func (m *Model) syncSet(w *World, i int, e env, to ag.ReplicaID) (v [maxMembers]copyID, k uint8) {
	view := m.view(w, i, e)
	ms, have := view.HandoverSyncSet(to)
	for _, x := range ms {
		v[index(x.ID)] = copyOf(x.Copy)
	}
	return v, uint8(have)
}

// successor is the transaction that ends a hand-over.
func (m *Model) successor(w *World, i int) pending {
	n := &w.nodes[i]
	e, to := w.epoch, int(n.busy.other)-1
	e.epoch, e.phase, e.leader, e.maxTLI, e.forced = e.epoch+1, promote, uint8(to+1), e.maxTLI+1, false
	e.tli, e.copy = e.maxTLI, w.state.v[to]
	e.fromTLI, e.fromLSN = m.logs.tli(n.log), m.logs.depth(n.log)
	e.v, e.k = n.busy.epoch.v, n.busy.epoch.k
	return pending{kind: committing, guardState: true, staleEpoch: n.busy.staleEpoch, staleState: n.busy.staleState, hasEpoch: true, epoch: e}
}

// giveUp ends a hand-over before its transaction was sent. A server that was stopped starts again where it stopped, in
// the same epoch, if the record still names this node as leader and its lease holds. Clients are admitted again AFTER
// its WAL is replicated.
func (m *Model) giveUp(w *World, i int) {
	n := &w.nodes[i]
	b := n.busy
	n.busy, w.op = pending{}, ""
	if n.server == writable {
		return // it never stopped serving
	}
	moved := w.epoch.epoch != b.at || w.epoch.leader != uint8(i+1) || w.epoch.phase != lead || n.lease != b.at
	if n.server != down || n.data != present || n.armed != b.at || moved {
		return
	}
	n.server, n.endOfRec, n.restart = writable, m.logs.depth(w.state.basis), m.logs.depth(n.log)
	n.sync = b.sync
}

// lose makes the hand-over's transaction take effect later, or never. Its author cannot tell, and no longer leads.
func (m *Model) lose(w *World, i int) pending {
	b := m.successor(w, i)
	if m.flaw == flawResume {
		m.giveUp(w, i)
	}
	w.nodes[i].busy, w.op = pending{}, ""
	return b
}

// announce makes the agent of node i announce its restart in /lead. No transaction runs, and no client is connected any
// more.
func (m *Model) announce(w *World, i int) {
	w.nodes[i].inPlace, w.nodes[i].opened = announced, 0
	m.endSessions(w, i, everybody)
	w.renews(i, true)
}

// renews is a renewal of /lead by node i with news: it voids transactions that compare the key.
func (w *World) renews(i int, restarting bool) {
	w.restarting = restarting
	for j := range w.nodes {
		if b := &w.nodes[j].busy; j != i && b.kind != idle {
			b.staleLead = true
		}
	}
	if w.late.kind != idle {
		w.late.staleLead = true
	}
}

// mayRestart reports whether the agent of primary i may end for its successor: it leads, is open, does nothing else,
// and every transaction has ended with an answer.
func (m *Model) mayRestart(w *World, i int) bool {
	n := &w.nodes[i]
	if !n.isOpen() || n.busy.kind != idle || n.lease != n.armed || n.inPlace != settled || n.attached {
		return false
	}
	if w.epoch.epoch != n.armed || w.epoch.phase != lead || w.op != "" {
		return false
	}
	return m.logs.depth(n.log) <= n.endOfRec || m.logs.in(n.log, w.acked)
}

// detach ends the agent of node i, and with it its sessions and what it said of its role: the successor takes nobody
// before it has decided. Its server keeps running, and its keeper waits for the successor.
func (m *Model) detach(w *World, i int) {
	n := &w.nodes[i]
	w.cutSessions(i)
	n.takes, n.unfitToRead = 0, false
	n.inPlace, n.up = away, false
	n.busy = pending{}
	n.seals, n.unfit, n.torn, n.late, n.sealEp = 0, 0, 0, 0, 0
	n.sealLog, n.sealCpy = [maxMembers]wal{}, [maxMembers]copyID{}
	n.withheld, n.known, n.fresh = 0, 0, true
	w.stopLeading(i)
	w.hold(i)
}

// attach lets the successor take the server over. Any difference from the announcement ends in a fence.
func (m *Model) attach(w *World, i int) {
	n := &w.nodes[i]
	n.inPlace, n.up = settled, true
	asAnnounced := w.epoch.epoch == n.armed && w.epoch.leader == uint8(i+1) && w.epoch.phase == lead && w.state.epoch == n.armed && w.restarting && !w.released
	if n.server != writable || !asAnnounced {
		w.fence(i)
		return
	}
	w.incarnation++
	w.renews(i, true)
	n.lease, n.attached, n.proven, n.barrier = n.armed, true, false, 0
	m.declare(w, i, w.settings)
	v := setting{n: w.state.k}
	for j, c := range w.state.v {
		if c != 0 {
			v.p |= one(j)
		}
	}
	if !holds(w.state, n.sync) {
		m.setSync(n, v)
	}
}

// holds is State.Holds in package ag.
func holds(st stateRec, s setting) bool {
	if st.k == 0 {
		return true
	}
	in := uint8(0)
	for j, c := range st.v {
		if c != 0 && s.p.has(j) {
			in++
		}
	}
	outside := uint8(s.p.size()) - in
	return st.k+outside <= s.n
}

// expire is the end of the keeper's wait: it fences, and the agent that starts later is like any other.
func (m *Model) expire(w *World, i int) {
	w.crash(i)
	w.nodes[i].up = true
}

// The next functions are the removal of a member, as by Service.Remove in package operations, and its return.

// mayRemove reports whether an operator who wants to take member i out is not refused at once.
func (m *Model) mayRemove(w *World, i int) bool {
	copies := m.copiesIn(w.settings)
	return w.removing == 0 && !w.settings.removed.has(i) && int(w.epoch.leader) != i+1 && (copies > 2 || !m.group.Replicas[i].HasData()) &&
		(w.settings.required == 0 || copies-2 >= int(w.settings.required)-1)
}

// copiesIn returns how many members with data the group has.
func (m *Model) copiesIn(c settings) (n int) {
	for i := range m.n {
		if m.group.Replicas[i].HasData() && !c.removed.has(i) {
			n++
		}
	}
	return n
}

func (m *Model) beginRemoval(w *World, i int) {
	w.removing = uint8(i + 1)
	w.settings.suspended |= one(i)
}

// dispensable reports whether the record does without a member that is to be removed: another member leads, so this one
// did not lead last either, and commits do not count it.
func (m *Model) dispensable(w *World, i int) bool {
	if m.flaw == flawCounted {
		return int(w.epoch.leader) != i+1
	}
	return w.state.v[i] == 0 && (m.flaw == flawRemoval || w.epoch.phase == lead && int(w.epoch.leader) != i+1)
}

// remove takes the member out whose removal has begun. Votes are assigned anew.
func (m *Model) remove(w *World) {
	i := int(w.removing) - 1
	w.removing = 0
	w.settings.removed |= one(i)
	w.settings.suspended &^= one(i)
	m.assignVotes(w, -1)
	if !m.timed { // it is cut off from everything
		w.nodes[i].busy = pending{}
		w.hold(i)
	}
	m.checkMembers(w)
}

// rejoin lets a removed member join again, as one that has nothing.
func (m *Model) rejoin(w *World, i int) {
	n, c := &w.nodes[i], &w.settings
	w.wipe(i)
	n.copy, n.promised, n.began, n.from, n.gone, n.bare, n.ill, n.stood, n.up = 0, 0, 0, begun{}, 0, 0, healthy, false, true
	for _, s := range []*set{&c.removed, &c.suspended, &c.async, &c.manual, &c.maintained} {
		*s &^= one(i)
	}
	m.assignVotes(w, i)
}

// assignVotes decides again which members vote. One that is new has no vote yet; -1: none is.
func (m *Model) assignVotes(w *World, joins int) {
	g := m.groupWith(w.settings)
	g.Replicas = slices.Clone(g.Replicas)
	for k := range g.Replicas {
		r := &g.Replicas[k]
		if r.Voter = r.Voter && index(r.ID) != joins; r.Voter {
			r.EtcdID = 1
		}
	}
	g.AssignVotes()
	w.settings.votes = 0
	for _, r := range g.Replicas {
		if i := index(r.ID); r.Voter != m.group.Replicas[i].Voter {
			w.settings.votes |= one(i)
		}
	}
}

// The next functions are what an operator of the explorer may change.

// change is one setting.
type change uint8

const (
	toSuspended change = iota
	toAsync
	toManual
	toMaintained
	toRequired // of as many as the number of the member
	toAll
	toMaintenance
	toRemoved
	toRejoined
)

// changes lists what operators may do to the configuration.
func (m *Model) changes(w *World, evs []event) []event {
	if i := int(w.removing) - 1; i >= 0 && m.dispensable(w, i) {
		evs = append(evs, event{doRemove, uint8(i), 0})
	}
	if w.changes == 0 {
		return evs
	}
	evs = append(evs, event{doChange, 0, uint8(toAll)}, event{doChange, 0, uint8(toMaintenance)})
	for i := range m.n {
		x := uint8(i)
		switch {
		case w.settings.removed.has(i):
			evs = append(evs, event{doChange, x, uint8(toRejoined)})
			continue
		case m.mayRemove(w, i):
			evs = append(evs, event{doChange, x, uint8(toRemoved)})
		}
		if !m.group.Replicas[i].HasData() {
			continue
		}
		for c := toSuspended; c <= toRequired; c++ {
			evs = append(evs, event{doChange, x, uint8(c)})
		}
	}
	return evs
}

// change makes one of changes.
func (m *Model) change(w *World, i int, to change) {
	c := &w.settings
	switch to {
	case toSuspended:
		c.suspended ^= one(i)
	case toAsync:
		c.async ^= one(i)
	case toManual:
		c.manual ^= one(i)
	case toMaintained:
		c.maintained ^= one(i)
	case toRequired:
		c.required = uint8(i) + 1
	case toAll:
		c.all = !c.all
	case toMaintenance:
		c.maintenance = !c.maintenance
	case toRemoved:
		m.beginRemoval(w, i)
	case toRejoined:
		m.rejoin(w, i)
	}
}

// alter is an operator who changes one setting, of member i if it is a member's.
func (s *Sim) alter(i int) {
	c := &s.w.settings
	switch s.rng.IntN(7) {
	case 0:
		if s.m.group.Replicas[i].HasData() {
			c.async ^= one(i)
		}
	case 1:
		c.manual ^= one(i)
	case 2:
		c.required = uint8(s.rng.IntN(s.m.withData() + 1))
	case 3:
		c.all = !c.all
	case 4:
		c.timeout = !c.timeout
	case 5:
		c.maintenance = !c.maintenance
	case 6:
		c.maintained ^= one(i)
	}
	s.say("an operator changes the configuration: %+v", *c)
}

// drawMoves draws how often operators take members out, and change the timing. It has random numbers of its own, as
// suspicions have.
func (s *Sim) drawMoves(seed uint64) {
	s.moves = rand.New(rand.NewPCG(seed, 2))
	if s.m.only == (odds{}) && s.moves.IntN(3) == 0 {
		for _, o := range []*int{&s.odds.remove, &s.odds.profile, &s.odds.strict, &s.odds.unsure} {
			if s.moves.IntN(2) == 0 {
				*o = 1 + s.moves.IntN(100)
			}
		}
		s.odds.unsure *= 20
	}
	s.external = s.moves.IntN(2) == 0
	if s.fence = profiles[0].Fence; s.odds.profile > 0 { // a host of which a shorter time is known
		s.fence = profiles[1].Fence
	}
}

// move is an operator who changes the members or the timing, at any moment; but not once the store has gone back: with
// enough voters that have forgotten a vote, an earlier leader goes on.
func (s *Sim) move() {
	o, c := s.odds, &s.w.settings
	if o.remove+o.profile+o.strict+o.replace == 0 || s.storeDown > s.now || s.backwards {
		return
	}
	s.removal()
	if o.replace > 0 && s.heirs.IntN(10000) < o.replace {
		s.replace(s.heirs.IntN(s.m.n))
	}
	switch i := s.moves.IntN(s.m.n); {
	case s.moves.IntN(10000) < o.profile:
		c.profile = uint8(s.moves.IntN(len(profiles)))
		s.say("an operator changes the lease profile to %s", profiles[c.profile].Name)
	case s.moves.IntN(10000) < o.strict:
		c.strict = !c.strict
		s.say("an operator changes FAILURE_DETECTION; STRICT: %v", c.strict)
	case s.moves.IntN(10000) < o.remove && s.m.mayRemove(&s.w, i):
		s.say("an operator begins to remove %s", names[i])
		s.m.beginRemoval(&s.w, i)
		s.removeAt, s.giveUpAt = s.now+s.moves.IntN(5), s.now+450
	}
}

// removal carries on the removal that an operator has begun, and lets members join again that were removed a while ago.
func (s *Sim) removal() {
	c := &s.w.settings
	for i := range s.m.n {
		if c.removed.has(i) && s.returns[i] <= s.now {
			s.say("%s joins again, in place of a lost one: %v", names[i], s.replaced.has(i))
			s.join(i)
			s.seen[i], s.nodes[i] = mark{}, simNode{line: s.nodes[i].line, seenAt: s.now, quietAt: s.now}
		}
	}
	i := int(s.w.removing) - 1
	switch {
	case i < 0 || s.now < s.removeAt:
	case s.m.dispensable(&s.w, i), s.replaced.has(i) && s.m.flaw == flawHastyReplace && int(s.w.epoch.leader) != i+1:
		s.say("%s is removed", names[i])
		s.m.remove(&s.w)
		if s.returns[i] = s.now + 20 + s.moves.IntN(600); s.replaced.has(i) {
			s.returns[i] = s.now + 1 + s.heirs.IntN(40)
		}
	case s.now >= s.giveUpAt:
		s.say("%s is not removed, and resumed", names[i])
		s.w.removing = 0
		c.suspended &^= one(i)
		if s.replaced.has(i) { // the machine is back
			s.replaced, s.nodes[i].downUntil = s.replaced&^one(i), s.now
		}
	default:
		s.removeAt = s.now + s.moves.IntN(5)
	}
}

// drawReplacements draws how often a machine is lost and replaced, with random numbers of its own.
func (s *Sim) drawReplacements(seed uint64) {
	s.heirs = rand.New(rand.NewPCG(seed, 3))
	if s.m.only == (odds{}) && s.heirs.IntN(4) == 0 {
		s.odds.replace = 1 + s.heirs.IntN(100)
	}
}

// replace is an operator who replaces member i, whose machine does not answer, as by Service.Replace in package
// operations. The machine has come to an end, or it stands still and goes on when its name belongs to another one: a
// transaction that its agent had decided on is then made, unless the store refuses it. Its copy is never used again.
func (s *Sim) replace(i int) {
	n := &s.w.nodes[i]
	if !s.m.mayRemove(&s.w, i) || n.inPlace != settled {
		return
	}
	s.say("the machine of %s is lost, and an operator begins to replace it", names[i])
	for k := range s.late {
		if l := &s.late[k]; l.who == i {
			l.heir, l.at = true, l.at+s.heirs.IntN(600)
		}
	}
	if n.busy.kind == committing {
		s.late = append(s.late, lateCommit{i, s.now + s.heirs.IntN(600), n.busy, s.epochRev, s.stateRev, s.leadRev, true})
	}
	s.crash(i, troubled+patience)
	s.m.beginRemoval(&s.w, i)
	s.replaced |= one(i)
	s.removeAt, s.giveUpAt = s.now+s.heirs.IntN(5), s.now+450
}

// join lets a removed member join again, or the successor of one that was replaced, which has its modes.
func (s *Sim) join(i int) {
	c := &s.w.settings
	was := *c
	s.m.rejoin(&s.w, i)
	if !s.replaced.has(i) {
		return
	}
	s.replaced &^= one(i)
	c.async |= was.async & one(i)
	c.manual |= was.manual & one(i)
	c.successors++
	s.w.nodes[i].fresh = s.m.flaw != flawHeirAcks
}
