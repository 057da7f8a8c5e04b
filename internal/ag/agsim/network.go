package agsim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// This file is the network: messages that arrive late, twice, in another order or without their answer, and records of
// which the beginning alone has arrived.

// letter is a message on its way: the seal of a member, or its word of what it has flushed.
type letter struct {
	kind     letterKind
	from, to uint8 // counted from 1
	epoch    uint16
	log      wal
	copy     copyID
	unfit    bool
	torn     bool
	late     bool
	over     bool // its stream has ended since
}

type letterKind uint8

const (
	noLetter letterKind = iota
	sealGiven
	flushed
)

// arrive delivers the letter. It stays on its way, and may arrive again, if it is to be doubled.
func (m *Model) arrive(w *World, again bool) {
	l := w.letter
	if !again {
		w.letter = letter{}
	}
	i, j := int(l.to)-1, int(l.from)-1
	n := &w.nodes[i]
	switch l.kind {
	case sealGiven:
		if n.sealEp == l.epoch && int(w.epoch.leader) == i+1 {
			n.takeSeal(j, l)
		}
	case flushed:
		if !l.over || m.flaw == flawOldReport && n.streams.has(j) {
			n.got[j] = max(n.got[j], m.logs.depth(l.log))
		}
	case noLetter:
	}
}

// letters lists what may happen to messages.
func (m *Model) letters(w *World, evs []event) []event {
	if w.letter.kind != noLetter {
		evs = append(evs, event{doArrive, 0, 0}, event{doArrive, 0, 1})
	}
	for i := range m.n {
		n := &w.nodes[i]
		if w.tears == 0 || !n.up {
			continue
		}
		if m.mayTear(w, i) {
			evs = append(evs, event{doTear, uint8(i), 0})
		}
		if w.letter.kind != noLetter {
			continue
		}
		for j := range m.n {
			if m.mayAskSeal(w, i, j) {
				evs = append(evs, event{doSealLate, uint8(i), uint8(j)})
			}
		}
		if src, ok := m.mayStream(w, i); ok && w.nodes[src].streams.has(i) && w.nodes[src].got[i] != 0 {
			evs = append(evs, event{doFlushLate, uint8(src), uint8(i)})
		}
	}
	return evs
}

// mayAskSeal reports whether candidate i may ask j for its seal now.
func (m *Model) mayAskSeal(w *World, i, j int) bool {
	n := &w.nodes[i]
	return w.epoch.phase == seal && int(w.epoch.leader) == i+1 && n.sealEp == w.epoch.epoch && n.busy.kind != committing &&
		!n.seals.has(j) && w.nodes[j].up && m.group.Replicas[j].HasData() && !m.cutOff(w, j)
}

// mail is one of letters.
func (m *Model) mail(w *World, ev event) {
	i, j := int(ev.i), int(ev.j)
	switch ev.what { //nolint:exhaustive // the others are no letters
	case doTear:
		w.tears--
		w.nodes[i].half = true
	case doSealLate:
		w.tears--
		m.delay(w, i, j, sealGiven)
	case doFlushLate:
		w.tears--
		m.delay(w, i, j, flushed)
	case doArrive:
		m.arrive(w, ev.j == 1)
	}
}

// takeSeal notes the seal of member j.
func (n *node) takeSeal(j int, l letter) {
	n.seals |= one(j)
	n.torn, n.late = n.torn&^one(j), n.late&^one(j)
	if l.unfit {
		n.unfit |= one(j)
	}
	if l.torn {
		n.torn |= one(j)
	}
	if l.late {
		n.late |= one(j)
	}
	n.sealLog[j], n.sealCpy[j] = l.log, l.copy
}

// ends marks what a stream between these two said: it has ended. An index below zero stands for any.
func (w *World) ends(from, to int) {
	l := &w.letter
	if l.kind == flushed && (from < 0 || int(l.from) == from+1) && (to < 0 || int(l.to) == to+1) {
		l.over = true
	}
}

// delay puts the answer to what happens at node j on its way, instead of letting it arrive at once: its seal for the
// candidate i, or its word of the record that it has flushed.
func (m *Model) delay(w *World, i, j int, k letterKind) {
	if k == sealGiven {
		w.letter = m.giveSeal(w, i, j)
		return
	}
	s := &w.nodes[i]
	had := s.got[j]
	m.stream(w, j, i)
	if s.streams.has(j) && s.got[j] > had && had != 0 {
		w.letter = letter{kind: flushed, from: uint8(j + 1), to: uint8(i + 1), log: w.nodes[j].log}
		s.got[j] = had
	}
}

// mayTear reports whether the beginning of a record can arrive at node j alone.
func (m *Model) mayTear(w *World, j int) bool {
	n := &w.nodes[j]
	src, ok := m.mayStream(w, j)
	return ok && !n.half && w.nodes[src].streams.has(j) && m.logs.depth(n.log) < m.logs.depth(w.nodes[src].log)
}

// restarted is the look of a node that begins again at its files, which end with a whole record. If it had reported a
// later position, its copy would be an older one.
func (m *Model) restarted(w *World, i int) {
	n := &w.nodes[i]
	half := n.half
	n.half = false
	if half && m.flaw == flawTornCopy && n.data == present {
		w.copies++
		n.copy = w.copies
		fail("%s disowns its copy, which has lost nothing (NoCopyDisownedThatLostNothing)", names[i])
	}
}

// acknowledges reports whether node j acknowledges a heartbeat of that epoch.
func (m *Model) acknowledges(w *World, j int, epoch uint16) bool {
	n := &w.nodes[j]
	switch {
	case !n.up || m.cutOff(w, j):
		return false
	case n.fresh && m.flaw != flawForget, n.withheld == epoch && m.flaw != flawKeepAcking, n.known > epoch && m.flaw != flawAckOld:
		return false
	}
	return true
}

// cutOff reports whether node j was removed and reaches nobody any more. Where there are clocks, nodes that have not
// read that yet still speak to it.
func (m *Model) cutOff(w *World, j int) bool { return !m.timed && w.settings.removed.has(j) }

// beat is a heartbeat of primary i that j acknowledges.
func (m *Model) beat(w *World, i, j int) {
	n := &w.nodes[i]
	if n.answerEp != n.armed {
		n.answerEp, n.answer = n.armed, 0
	}
	n.answer |= one(j)
}

// lapse is the time it takes until no answer rests on an acknowledgement of j.
func (m *Model) lapse(w *World, j int) {
	for i := range m.n {
		w.nodes[i].answer &^= one(j)
	}
}

// answers reports whether a primary's answer lease is in force, by every declaration that /lead may hold.
func (m *Model) answers(w *World, i int) bool {
	n := &w.nodes[i]
	if m.flaw == flawNoAnswers || !m.votes {
		return true
	}
	return n.obeysEp == n.armed && n.covered(i, n.obeys) && n.covered(i, n.doubts)
}

// covered reports whether enough of the declared voters have acknowledged a heartbeat of node i lately.
func (n *node) covered(i int, d declaration) bool {
	have := n.answer & d.voters
	if n.answerEp != n.armed {
		have = 0
	}
	return d.voters == 0 || (have|one(i)&d.voters).size() > d.voters.size()/2
}

// rests is for how long an answer may rest on an acknowledgement.
func (n *node) rests() time.Duration {
	d := n.obeys.lease
	if n.doubts.voters != 0 {
		d = min(d, n.doubts.lease)
	}
	return time.Duration(d) * tick
}

// beats sends the heartbeats of node i that are acknowledged in this tick, and ends those that were.
func (s *Sim) beats(i int) {
	n, t, m := &s.w.nodes[i], &s.nodes[i], s.m
	if n.answerEp != n.armed {
		n.answerEp, n.answer = n.armed, 0
	}
	var voters set
	if n.armed != 0 {
		voters = m.declares(t.last.settings).voters
	}
	for j := range m.n {
		o := &s.nodes[j]
		if j != i && voters.has(j) && s.linked(i, j) && t.pausedUntil <= s.now && o.pausedUntil <= s.now {
			o.beatEp = n.armed
			if m.acknowledges(&s.w, j, n.armed) {
				o.quietAt = s.now
				s.w.nodes[j].known = max(s.w.nodes[j].known, n.armed) // it acknowledges no earlier epoch from now on
				if s.chance(s.odds.delay) && len(s.mail) < 8 && !s.well {
					s.mail = append(s.mail, ack{j, i, s.now, s.now + s.rng.IntN(12), n.armed})
					continue
				}
				t.acked[j] = s.now
				m.beat(&s.w, i, j)
				s.first(i, j)
			}
		}
		if n.answer.has(j) && s.elapsed(i, t.acked[j]) >= n.rests() {
			n.answer &^= one(j)
		}
	}
}

// death reports whether node i has evidence against the leader of the epoch. It has if it heard the leader's
// heartbeats, and its connections were ended and refused, twice, without a renewal since.
func (s *Sim) death(i int, e env) bool {
	t, p := &s.nodes[i], int(e.epoch.leader)-1
	dead := t.beatEp == e.epoch.epoch && p != i && !s.cut[i].has(p) && (!s.w.nodes[p].up || s.reject[i].has(p))
	switch {
	case !dead:
		t.deathAt = 0
	case t.deathAt == 0 || t.deathLead != s.leadRev:
		t.deathAt, t.deathLead = s.now, s.leadRev
	}
	return dead && t.deathAt < s.now
}

// ack is the acknowledgement of a heartbeat, on its way.
type ack struct {
	from, to, sent, at int
	epoch              uint16
}

// acks delivers what is due. An acknowledgement counts from when its heartbeat was sent.
func (s *Sim) acks() {
	s.mail = slices.DeleteFunc(s.mail, func(a ack) bool {
		if a.at > s.now {
			return false
		}
		n, t := &s.w.nodes[a.to], &s.nodes[a.to]
		sent := a.sent
		if s.m.flaw == flawLateAck {
			sent = s.now
		}
		if n.armed == a.epoch && n.answerEp == a.epoch {
			if t.acked[a.from] = max(t.acked[a.from], sent); s.elapsed(a.to, t.acked[a.from]) < n.rests() {
				s.m.beat(&s.w, a.to, a.from)
			}
			s.first(a.to, a.from)
		}
		return !s.chance(1000) // or it arrives again
	})
}

// first notes when voter j acknowledged the epoch of primary i for the first time.
func (s *Sim) first(i, j int) {
	t, e := &s.nodes[i], s.w.nodes[i].armed
	if t.firstEp != e {
		t.firstEp, t.first = e, [maxMembers]int{}
	}
	if t.first[j] == 0 {
		t.first[j] = s.now
	}
}

// settles reports whether node i says in /lead that the outgoing leader has ended.
func (m *Model) settles(w *World, i int, e env) bool {
	if e.noQuorum || e.epoch.outgoing == 0 || int(e.epoch.leader) != i+1 || e.epoch.phase != lead {
		return false
	}
	v := m.view(w, i, e)
	return v.Settled()
}

// superseded is Answers.Superseded in package agent/lease.
func (s *Sim) superseded(i int, e epochRec) time.Duration {
	t := &s.nodes[i]
	if e.outgoing == 0 || e.outAnswer.voters == 0 || t.firstEp != e.epoch || s.w.nodes[i].armed != e.epoch {
		return 0
	}
	voters := e.outAnswer.voters &^ one(int(e.outgoing)-1)
	need := e.outAnswer.voters.size()/2 + 1
	if voters.has(i) {
		need--
	}
	var at []int
	for j := range s.m.n {
		if j != i && voters.has(j) && t.first[j] != 0 {
			at = append(at, t.first[j])
		}
	}
	if need <= 0 || len(at) < need {
		return 0
	}
	slices.Sort(at)
	return s.elapsed(i, at[need-1])
}

// The next functions are how a candidate gets the end of the longest log from a member that may not be promoted.

// feed opens and closes node i for the candidate of the epoch it has sealed.
func (m *Model) feed(w *World, i int, v *ag.View) {
	n := &w.nodes[i]
	n.feeds, n.feedTo = 0, 0
	if to, ok := v.Feeds(); ok {
		n.feeds, n.feedTo = uint16(v.Record.Epoch.Epoch), uint8(index(to)+1)
	}
}

// mayFetch reports whether node j streams from src, its source, as a candidate does.
func (m *Model) mayFetch(w *World, j, src int) bool {
	n, s := &w.nodes[j], &w.nodes[src]
	return s.up && s.server == recovery && s.feeds != 0 && s.feeds == n.sourceEp && int(s.feedTo) == j+1
}

// fetch carries one record, unless the histories differ.
func (m *Model) fetch(w *World, j, src int) {
	n, s := &w.nodes[j], &w.nodes[src]
	depth := m.logs.depth(n.log)
	if depth > m.logs.depth(s.log) || m.logs.tli(m.logs.at(s.log, depth)) != m.logs.tli(n.log) {
		n.refused = true
		return
	}
	r := m.logs.of(m.logs.at(s.log, depth+1))
	n.log = m.logs.append(n.log, r.tli, r.writer)
}

// drawSuspicion draws how often voters suspect the leader for nothing. It has random numbers of its own, so that the
// histories without suspicions stay what they are.
func (s *Sim) drawSuspicion(seed uint64) {
	s.doubt = rand.New(rand.NewPCG(seed, 1))
	if s.m.only == (odds{}) && s.doubt.IntN(3) == 0 {
		s.odds.suspicion = 1 + s.doubt.IntN(100)
	}
}

// suspicion lets voters take the leader for silent, at any moment and for any time: any measurement of theirs may be
// wrong, and nothing but the moment of the next takeover may depend on it.
func (s *Sim) suspicion() {
	if s.odds.suspicion == 0 || s.doubt.IntN(10000) >= s.odds.suspicion {
		return
	}
	who, all := s.doubt.IntN(s.m.n), s.doubt.IntN(2) == 0
	for i := range s.m.n {
		if long := 1 + s.doubt.IntN(100); i == who || all {
			s.nodes[i].suspectsUntil = s.now + long
		}
	}
	s.say("%s suspects the leader, and everybody does: %v", names[who], all)
}

// The next part is the leases, where there are clocks.

// clock is what node i's clock shows.
func (s *Sim) clock(i, at int) time.Duration {
	return time.Duration(float64(time.Duration(at)*tick) * s.rate[i])
}

// timers are the keeper's deadline, the lease, and its renewal, which continues beside the loop.
func (s *Sim) timers(i int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	p, now := profiles[t.last.settings.profile], s.clock(i, s.now)
	if s.m.flaw == flawLongLease && n.lease != 0 {
		t.deadline = now + p.Lease
	}
	if n.lease != 0 && now >= t.deadline {
		n.lease = 0
	}
	if n.armed != 0 && n.server == writable && now >= t.deadline+s.fence-tick {
		s.say("%s's keeper fences", names[i])
		s.w.fence(i)
	}
	if t.want == 0 || t.pausedUntil > s.now || t.renewAt > s.now || !s.quorum(i) {
		return
	}
	if s.w.epoch.phase != lead { // by progress, not by being alive
		if t.progress == t.lastProgress {
			return
		}
		t.lastProgress = t.progress
	}
	t.renewAt = s.now + ticks(p.Heart)
	if s.w.epoch.epoch != t.want || int(s.w.epoch.leader) != i+1 || s.w.released {
		t.want, n.lease = 0, 0
		return
	}
	s.renew(i, s.now-s.rng.IntN(3))
	s.leadRev++
	s.w.restarting = n.inPlace == announced || n.attached
	s.w.settled = s.w.settled || t.settledEp == s.w.epoch.epoch
	for j := range s.m.n {
		o := &s.w.nodes[j].busy
		o.staleLead = o.staleLead || o.kind != idle
	}
}

// renew is a renewal of /lead by node i, sent at that time, with the timing of the configuration that it has read last.
// If its answer is lost, it is declared, and the lease is what it was.
func (s *Sim) renew(i, sent int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	c, at := t.last.settings, s.clock(i, sent)
	p, held := profiles[c.profile], t.deadline
	if t.granted != t.want {
		held = 0
	}
	s.w.observer = p.Declared(held - at)
	if s.m.flaw == flawShort {
		s.w.observer = p.Observer
	}
	if s.odds.unsure > 0 && s.moves.IntN(10000) < s.odds.unsure && !s.well {
		s.w.declared = s.m.declares(c)
		if s.m.flaw != flawUnsure {
			n.doubts = s.w.declared
		}
		return
	}
	n.lease = t.want
	t.deadline, t.granted = max(at+p.Lease, held), t.want
	s.m.declare(&s.w, i, c)
}
