package agsim

import "github.com/coteriedb/coterie/internal/ag"

// This file is the clients: sessions of both intents, which outlive a change of role, and the listener before them. The
// place of a relayed session was chosen by another node's routes, which may be old. So a session may ask for any role
// at any time. The node judges it when it is placed, and once more when it is opened.

// maxSessions bounds the sessions of clients in one world.
const maxSessions = 2

// routes are what the listener of a node takes.
type routes uint8

const (
	takesReaders routes = 1 << iota // of a secondary
	isPrimary
	isOpen
	isPromoting
)

// stage is how far a request has come.
type stage uint8

const (
	quiet    stage = iota // none is under way
	waiting               // its commit waits for the members
	answered              // the server has answered, and the listener has not passed the answer on
)

// session is a client's session on the server of a node, and its request.
type session struct {
	on      uint8 // the node, counted from 1; 0: there is no session
	opened  bool  // not only placed
	primary bool  // it was placed on a primary
	stage   stage
	write   bool
	cut     bool    // its wait was cancelled: the server says success, and only its log tells of it
	by      setting // what its commit waited for
	at      wal     // what it has read, or its commit
	since   wal     // the last commit that was acknowledged before the request began
}

// whose is a choice among the sessions of a node.
type whose uint8

const (
	readersOnly whose = iota // those that were not placed on a primary
	everybody
)

// publish gives the listener of node i the routes of this turn, and ends the sessions that may not continue.
func (m *Model) publish(w *World, i int, v *ag.View, p ag.Plan) {
	n := &w.nodes[i]
	if !m.clients || !m.group.Replicas[i].HasData() {
		return
	}
	e, old := v.Record.Epoch, n.takes
	n.takes = 0
	holds := e.Leader == v.Self
	if holds && e.Phase != ag.PhaseSeal && n.opened != uint16(e.Epoch) {
		n.takes |= isPromoting
	}
	if holds && e.Phase == ag.PhaseLead && n.server == writable && v.Lease.Valid {
		n.takes |= isPrimary
		if p.Open {
			n.takes |= isOpen
		}
	}
	if v.Readable() && n.takes&isPromoting == 0 && !w.settings.suspended.has(i) {
		n.takes |= takesReaders
	}
	if n.takes&^old&isPromoting != 0 && !m.keepsReaders() {
		m.endSessions(w, i, readersOnly)
	}
	switch was, is := old&isPrimary != 0, n.takes&isPrimary != 0; {
	case was && !is:
		m.endSessions(w, i, everybody)
	case is && !was, v.Unreadable() != "" && n.server == recovery && m.flaw != flawReadersStay:
		m.endSessions(w, i, readersOnly)
	}
}

// greet puts a reader on b and a client on the primary, and tells every listener of its role.
func (m *Model) greet(w *World) {
	for i := range m.n {
		if n := &w.nodes[i]; n.server == recovery {
			n.takes = takesReaders
		} else if n.server == writable {
			n.takes = isPrimary | isOpen
			w.sessions[1] = session{on: uint8(i + 1), opened: true, primary: true}
		}
	}
	if w.nodes[1].server == recovery {
		w.sessions[0] = session{on: 2, opened: true}
	}
}

// keepsReaders reports whether readers outlive a promotion, which is a mistake.
func (m *Model) keepsReaders() bool { return m.flaw == flawEarlyGate || m.flaw == flawToldNothing }

func (m *Model) endSessions(w *World, i int, who whose) {
	for k := range w.sessions { // one that is only placed is not known yet
		if s := &w.sessions[k]; int(s.on) == i+1 && s.opened && (who == everybody || !s.primary) {
			m.endSession(w, k)
		}
	}
}

// endSession ends a session from outside, and tells it what became of its request: nothing was under way, or nobody can
// tell.
func (m *Model) endSession(w *World, k int) {
	s := &w.sessions[k]
	nothing := !s.write || s.stage == quiet
	if m.flaw == flawToldNothing && !s.primary {
		nothing = true
	}
	if n := &w.nodes[s.on-1]; nothing && s.write && s.stage != quiet && m.logs.in(s.at, n.log) {
		fail("a client of %s is told that nothing was under way, and its commit %s is there (OutcomesAreTrue)", names[s.on-1], m.logs.position(s.at))
	}
	*s = session{}
}

// cutSessions ends the sessions of a server that ends: their clients cannot tell.
func (w *World) cutSessions(i int) {
	for k := range w.sessions {
		if int(w.sessions[k].on) == i+1 {
			w.sessions[k] = session{}
		}
	}
}

// places reports whether node i takes a session for that role, by its routes of this moment.
func (m *Model) places(w *World, i int, primary bool) bool {
	n := &w.nodes[i]
	if !n.up || n.server == down || n.takes&isPromoting != 0 {
		return false
	}
	if primary {
		return n.takes&(isPrimary|isOpen) == isPrimary|isOpen
	}
	return n.takes&(isPrimary|takesReaders) == takesReaders
}

// gate reports whether the gate of node i lets an answer pass. A standby's has no limit.
func (m *Model) gate(w *World, i int) bool {
	n := &w.nodes[i]
	switch {
	case n.armed == 0:
		return m.flaw != flawToldNothing || n.takes&isPromoting == 0
	case m.flaw == flawEarlyGate:
		return n.lease == n.armed && m.answers(w, i)
	}
	return n.opened == n.armed && n.restart == 0 && n.doubled == 0 && n.lease == n.armed && m.answers(w, i)
}

// clientEvents lists what may happen to session k next.
func (m *Model) clientEvents(w *World, k int, evs []event) []event {
	s, slot := &w.sessions[k], uint8(k)
	i := int(s.on) - 1
	switch {
	case s.on == 0:
		for j := range m.n {
			for role := range uint8(2) {
				if w.asks > 0 && m.group.Replicas[j].HasData() && m.places(w, j, role == 1) {
					evs = append(evs, event{doConnect, uint8(j), slot | role<<4})
				}
			}
		}
		return evs
	case !s.opened:
		return append(evs, event{doOpen, uint8(i), slot})
	}
	switch n := &w.nodes[i]; {
	case s.stage == quiet && w.asks > 0:
		if evs = append(evs, event{doAsk, uint8(i), slot}); n.server == writable {
			evs = append(evs, event{doAsk, uint8(i), slot | 1<<4}, event{doAsk, uint8(i), slot | 2<<4})
		}
	case s.stage == waiting:
		if best, _ := m.replicated(w, i); best >= m.logs.depth(s.at) {
			evs = append(evs, event{doWaited, uint8(i), slot})
		} else if w.asks > 0 {
			evs = append(evs, event{doCut, uint8(i), slot})
		}
	case s.stage == answered && m.gate(w, i):
		evs = append(evs, event{doReply, uint8(i), slot})
	}
	return evs
}

// client is what happens to a session.
func (m *Model) client(w *World, ev event) {
	i, k, arg := int(ev.i), int(ev.j&15), ev.j>>4
	n, s := &w.nodes[i], &w.sessions[k]
	switch ev.what { //nolint:exhaustive // the others are not a session's
	case doConnect:
		w.asks--
		*s = session{on: ev.i + 1, primary: arg == 1}
	case doOpen:
		if s.opened = true; !m.places(w, i, s.primary) && m.flaw != flawLateReader {
			*s = session{}
		}
	case doAsk:
		w.asks--
		if arg == 2 { // ALTER SYSTEM RESET ALL, and a reload: refused
			n.foreign = m.flaw == flawAlter || n.foreign
			n.free = m.flaw == flawAlter
			return
		}
		s.write, s.since = arg == 1, w.acked
		if s.stage = answered; s.write {
			n.log = m.logs.append(n.log, m.logs.tli(n.log), m.writer(i, n.armed))
			s.stage = waiting
		}
		s.at = n.log
	case doWaited:
		s.stage = answered
		_, s.by = m.replicated(w, i)
	case doCut:
		w.asks--
		s.stage, s.cut, s.by = answered, true, n.sync
	case doReply:
		m.pass(w, k)
	}
}

// pass is the listener with an answer that has arrived, at an open gate.
func (m *Model) pass(w *World, k int) {
	s := &w.sessions[k]
	i := int(s.on) - 1
	n := &w.nodes[i]
	byLogin := m.flaw == flawEarlyGate || m.flaw == flawLateReader
	if n.server == writable && !s.primary && !byLogin { // the answer shows the promotion
		m.endSession(w, k)
		return
	}
	guarded := s.primary && m.flaw != flawHidden
	if s.write && s.cut && guarded && !m.confirmed(w, i, s.at) {
		return
	}
	m.checkPassed(w, i, s)
	s.stage, s.write, s.cut, s.by, s.at, s.since = quiet, false, false, setting{}, 0, 0
}

// confirmed asks the agent of node i whether the members have flushed a commit.
func (m *Model) confirmed(w *World, i int, at wal) bool {
	e := env{epoch: w.epoch, state: w.state, settings: w.settings}
	if m.seenBy != nil {
		e = m.seenBy(i)
	}
	v := m.view(w, i, e)
	ok, err := v.Acknowledged(ag.LSN(m.logs.depth(at)), v.Streams)
	return ok && err == nil
}

// checkPassed is called when an answer reaches a client.
func (m *Model) checkPassed(w *World, i int, s *session) {
	n := &w.nodes[i]
	chosen := int(w.epoch.leader) == i+1 && w.epoch.phase == promote && n.known == w.epoch.epoch && n.takes&isPromoting != 0
	switch {
	case n.server == writable && n.opened != n.armed, chosen:
		fail("%s answers a client between being chosen and having opened (NoAnswerBetweenChosenAndOpen)", names[i])
	case n.server == recovery && n.unfitToRead:
		fail("%s answers a reader although it has found that its copy has diverged (ReadableImpliesNotDiverged)", names[i])
	case n.armed != 0 && n.armed < w.byVotes:
		fail("%s answers a client in epoch %d after epoch %d was claimed by votes (S3)", names[i], n.armed, w.byVotes)
	case m.timed && n.server == writable && !s.write && n.armed >= w.nowEpoch && m.logs.in(s.since, w.acked) && !m.logs.in(s.since, s.at):
		fail("%s answers a read of epoch %d that lacks the commit %s, acknowledged before it began (S3)", names[i], n.armed, m.logs.position(s.since))
	}
	if s.write {
		m.checkAck(w, i, s.at, s.by)
	}
	if n.server == writable && !s.primary {
		fail("%s, a primary, answers a session that was placed on a secondary (RoleOfThePresent)", names[i])
	}
}

// clients write to an open server, and receive answers.
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

// exclusive checks that two servers never both answer clients under a lease that they consider valid (S3). That holds
// after a forced failover as well.
func (s *Sim) exclusive() {
	first := -1
	for i := range s.m.n {
		n := &s.w.nodes[i]
		if n.server != writable || n.lease == 0 || n.opened != n.armed || !s.m.answers(&s.w, i) {
			continue
		}
		if first >= 0 && min(n.armed, s.w.nodes[first].armed) >= s.w.nowEpoch {
			fail("%s and %s both take writes, in epochs %d and %d (S3)", names[first], names[i], s.w.nodes[first].armed, n.armed)
		}
		first = i
	}
}

// sessions lets something happen to each session of a client, now and then.
func (s *Sim) sessions() {
	for k := range s.w.sessions {
		for s.w.asks = 9; s.chance(4000); s.w.asks = 9 {
			evs := s.m.clientEvents(&s.w, k, s.events[:0])
			if s.events = evs; len(evs) == 0 {
				break
			}
			s.m.client(&s.w, evs[s.rng.IntN(len(evs))])
		}
		if x := &s.w.sessions[k]; x.on != 0 && s.chance(300) { // it leaves
			*x = session{}
		}
	}
	s.w.asks = 0
}
