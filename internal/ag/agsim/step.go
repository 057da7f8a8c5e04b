package agsim

import (
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
)

// This file is the behaviour of the agent, the server and the store. Where package agent acts on a plan, it is done
// here.

// look is the part of an agent's turn before the decision: it adopts the record's statements about this node.
func (m *Model) look(w *World, i int, e env) {
	n := &w.nodes[i]
	if e.noQuorum {
		return
	}
	if n.sealEp != e.epoch.epoch {
		n.seals, n.unfit, n.torn, n.late, n.sealEp = 0, 0, 0, 0, e.epoch.epoch
		n.sealLog, n.sealCpy = [maxMembers]wal{}, [maxMembers]copyID{}
	}
	n.known = max(n.known, e.epoch.epoch)
	holds := e.epoch.leader == uint8(i+1) && e.epoch.phase == lead
	if holds && n.server == writable && n.armed == e.epoch.epoch {
		n.leading, n.began, n.from = e.epoch.epoch, 0, begun{}
	}
	if n.leading != 0 && (!holds || n.leading != e.epoch.epoch || n.server != writable) && n.busy.kind != handing {
		w.stopLeading(i)
	}
}

// turn decides for node i and begins the plan. Short actions are done at once; commits and long actions become pending.
func (m *Model) turn(w *World, i int, e env) ag.Plan {
	m.look(w, i, e)
	v := m.view(w, i, e)
	m.feed(w, i, &v)
	m.checkReadable(w, i, e, &v)
	p := m.decide(v)
	m.fired[p.Rule]++
	m.checkFollowed(w, i, e, p)
	if p.Open {
		m.checkOpen(w, i, e)
		w.nodes[i].opened, w.nodes[i].restart = e.epoch.epoch, 0
	}
	m.publish(w, i, &v, p)
	if n := &w.nodes[i]; !e.noQuorum {
		if n.gone, n.bare = 0, 0; n.data != present {
			n.bare = e.epoch.epoch
		}
		if n.data != present || p.Rule == ag.RuleAwaitDrop {
			n.gone = n.copy
		}
	}
	m.begin(w, i, e, p)
	return p
}

func (m *Model) begin(w *World, i int, e env, p ag.Plan) {
	n := &w.nodes[i]
	if p.Commit != nil {
		n.busy = m.commitOf(n, e, *p.Commit)
		n.busy.standsDown = p.Rule == ag.RuleStepDown || p.Rule == ag.RuleRelease && e.epoch.phase == lead
		n.busy.silent = p.Rule == ag.RuleClaim && !e.released && len(p.Commit.Votes) == 0
		n.busy.hasty = p.Rule == ag.RuleClaim && e.silence < e.patience() && !e.released
		n.busy.resumes = slices.Contains(p.Actions, ag.Action(ag.Acknowledge{}))
		return
	}
	for _, a := range p.Actions {
		b := pending{at: e.epoch.epoch}
		switch a := a.(type) {
		case ag.AskSeals: // the answers are events of their own
		case ag.EndStreams:
			w.endTwice(i, setOf(a.Members))
		case ag.Withhold:
			n.withheld = uint16(a.Epoch)
		case ag.Acknowledge:
			fail("%s acknowledges again without a commit", names[i])
		case ag.Fence:
			w.fence(i)
		case ag.Start:
			if n.server == down && n.data == present {
				n.server = recovery
				if n.ill == curable {
					n.ill = healthy
				}
			}
		case ag.Stop: // no log is unreadable in this world
			w.stop(i)
		case ag.Follow:
			m.follow(w, i, index(a.Leader), uint16(a.Epoch))
		case ag.Hold:
			w.hold(i)
		case ag.Promote:
			b.kind, b.tli, b.sync = promoting, uint16(a.TLI), setting{setOf(a.Sync.P), uint8(a.Sync.N)}
			b.from = m.begins(n, b.tli)
			if !m.keepsReaders() {
				m.endSessions(w, i, readersOnly)
			}
		case ag.SetSync:
			b.kind, b.sync = setting1, setting{setOf(a.Sync.P), uint8(a.Sync.N)}
		case ag.ProveSync:
			b.kind, b.sync = proving, n.sync
		case ag.Rewind:
			b.kind, b.other = rewinding, uint8(index(a.Source)+1)
		case ag.Seed:
			b.kind, b.other = seeding, uint8(index(a.Source)+1)
		case ag.Prepare: // the view reports it as done
		case ag.HandOver:
			b.kind, b.other, b.sync = handing, uint8(index(a.Op.To)+1), n.sync
			b.epoch.v, b.epoch.k = m.syncSet(w, i, e, a.Op.To)
		}
		if b.kind != idle && n.busy.kind == idle {
			n.busy = b
			if b.kind == rewinding || b.kind == seeding {
				m.beginRepair(w, i)
			}
		}
	}
}

// beginRepair stops the server and touches the data directory.
func (m *Model) beginRepair(w *World, i int) {
	n := &w.nodes[i]
	w.stop(i)
	if n.promised > n.busy.at {
		n.busy = pending{}
		return
	}
	b := n.busy
	m.follow(w, i, int(b.other)-1, b.at)
	m.checkRepair(w, i)
	n.data = partial
}

func (m *Model) commitOf(n *node, e env, c ag.Commit) pending {
	b := pending{kind: committing, at: e.epoch.epoch, guardState: c.Guard.State >= 0, guardLead: c.Guard.Lead >= 0}
	votes := (c.Vote != nil || c.Unvote != "") && m.flaw != flawHeirVotes
	if m.altered && (c.Epoch != nil || c.State != nil || votes) {
		b.guardConf, b.conf = true, e.settings
	}
	if c.Lead != nil && c.Lead.Released {
		b.release = true
		n.lease = 0
	}
	b.vote, b.unvote = c.Vote != nil, c.Unvote != ""
	if b.vote {
		b.against, b.waited = e.incarnation, uint8(ticks(c.Vote.Waited))
	}
	for _, v := range c.Votes {
		b.votes |= one(index(v.Member))
	}
	if c.Epoch != nil {
		b.hasEpoch = true
		b.epoch = epochRec{
			epoch: uint16(c.Epoch.Epoch), phase: phaseOf(c.Epoch.Phase), leader: uint8(index(c.Epoch.Leader) + 1),
			tli: uint16(c.Epoch.TLI), fromTLI: uint16(c.Epoch.From.Timeline), fromLSN: uint16(c.Epoch.From.LSN), maxTLI: uint16(c.Epoch.MaxTLI), forced: c.Epoch.Forced,
		}
		for _, t := range c.Epoch.Unled {
			b.epoch.unled |= 1 << t
		}
		if c.Epoch.Copy != "" {
			b.epoch.copy = copyOf(c.Epoch.Copy)
		}
		if o := c.Epoch.Outgoing; o.Leader != "" {
			b.epoch.outgoing, b.epoch.ticks = uint8(index(o.Leader)+1), uint16(ticks(o.Wait)+1)
			b.epoch.outAnswer, b.epoch.now = declarationOf(o.Answer), o.Now
		}
		b.epoch.k = uint8(c.Epoch.K)
		for _, x := range c.Epoch.V {
			b.epoch.v[index(x.ID)] = copyOf(x.Copy)
		}
	}
	if c.State != nil {
		b.hasState = true
		b.state = stateRec{
			epoch: uint16(c.State.Epoch), leader: uint8(index(c.State.Leader) + 1), copy: copyOf(c.State.Copy),
			k: uint8(c.State.K), basis: e.state.basis, set: setting{setOf(c.State.Setting.P), uint8(c.State.Setting.N)},
		}
		if f := c.State.Former; f.ID != "" {
			b.state.former, b.state.fcopy = uint8(index(f.ID)+1), copyOf(f.Copy)
		}
		if b.state.epoch != e.state.epoch {
			b.state.basis = m.logs.at(n.log, n.endOfRec)
		}
		for _, x := range c.State.V {
			b.state.v[index(x.ID)] = copyOf(x.Copy)
		}
		if c.State.Seq != 2 { // a view always shows 1
			fail("the sequence of /state went from 1 to %d", c.State.Seq)
		}
	}
	return b
}

// perform brings what node i is in the middle of to its end.
func (m *Model) perform(w *World, i int) {
	n := &w.nodes[i]
	b := n.busy
	if b.kind != handing {
		n.busy = pending{}
	}
	switch b.kind {
	case idle:
	case committing:
		if m.commit(w, i, b) && b.resumes {
			n.fresh, n.withheld = false, 0
		}
	case promoting:
		m.promote(w, i, b)
	case setting1:
		m.setSync(n, b.sync)
	case proving:
		if n.server == writable && n.sync == b.sync && (b.sync.n == 0 || n.streams&b.sync.p != 0) {
			n.olders, n.older = 0, [3]setting{}
			n.proven, n.barrier, n.attached = true, m.logs.depth(n.log), false
		}
	case rewinding, seeding:
		m.endRepair(w, i, b)
	case handing:
		m.handOver(w, i)
	}
}

func (m *Model) commit(w *World, i int, b pending) bool {
	if b.staleEpoch || b.guardState && b.staleState || b.guardLead && b.staleLead || b.staleVotes {
		return false
	}
	if b.guardConf && b.conf != w.settings && m.flaw != flawStale {
		return false
	}
	m.checkCommit(w, b)
	m.checkSilent(w, b)
	if b.hasEpoch && (b.epoch.epoch != w.epoch.epoch || b.epoch.leader != w.epoch.leader) { // its holder has declared nothing yet
		w.declared, w.observer = declaration{}, 0
	}
	w.late.outdate(b, i)
	for j := range m.n {
		w.nodes[j].busy.outdate(b, i)
	}
	m.castVote(w, i, b)
	if b.release {
		w.released = true
		w.nodes[i].stood = w.nodes[i].stood || b.standsDown
	}
	if b.hasState {
		w.state = b.state
	}
	if b.hasEpoch {
		w.released = w.released && b.epoch.leader == w.epoch.leader // what a candidate released does not bind its choice
		if b.epoch.epoch != w.epoch.epoch {
			w.released, w.restarting, w.incarnation = false, false, 0
			w.settled = w.settled && m.flaw == flawSettled
			w.op, w.opTo, w.opEpoch, w.opNow = "", 0, 0, false // a request is void in any other epoch
			if b.epoch.now && b.epoch.forced {
				w.nowEpoch = b.epoch.epoch
			}
		}
		w.epoch = b.epoch
		if b.hasState {
			m.checkLead(w, i)
			for j := range w.nodes { // none has compared its copy with this history
				w.nodes[j].unfitToRead = false
			}
		}
	}
	m.checkMembers(w)
	return true
}

// castVote is the part of a transaction that concerns votes. Taking one back makes void what is still on its way of it.
func (m *Model) castVote(w *World, i int, b pending) {
	switch {
	case b.vote:
		w.votes[i], w.against[i], w.waited[i] = b.at, b.against, b.waited
	case b.unvote:
		w.votes[i], w.against[i], w.waited[i] = 0, 0, 0
		if w.late.vote && int(w.lateBy) == i && m.flaw != flawLateVote {
			w.late, w.lateBy = pending{}, 0
		}
	case b.hasty:
		w.byVotes = b.epoch.epoch
	}
}

// outdate notes which keys another transaction changed since the view this plan was made from.
func (b *pending) outdate(by pending, who int) {
	if b.kind != idle {
		b.staleVotes = b.staleVotes || (by.vote || by.unvote) && b.votes.has(who)
		b.staleEpoch = b.staleEpoch || by.hasEpoch
		b.staleState = b.staleState || by.hasState
		b.staleLead = b.staleLead || by.release
	}
}

func (m *Model) promote(w *World, i int, b pending) {
	n := &w.nodes[i]
	if n.promised > b.at || n.lease != b.at || n.server != recovery || n.data != present || m.logs.tli(n.log) >= b.tli {
		return
	}
	if n.quarantine {
		fail("%s promotes a copy whose storage lost a write (F35)", names[i])
	}
	n.promised, n.began, n.from, n.half, n.unfitToRead = b.at, b.tli, m.begins(n, b.tli), false, false
	w.hold(i)
	m.checkTimeline(w, b.tli)
	n.log = m.logs.append(n.log, b.tli, m.writer(i, b.at))
	n.server, n.armed, n.endOfRec = writable, b.at, m.logs.depth(n.log)
	n.sync, n.older, n.olders, n.proven, n.barrier = b.sync, [3]setting{}, 0, false, 0
}

// setSync puts a setting in force for some backends. The setting before it may still be in force for others, until the
// new one is proven.
func (m *Model) setSync(n *node, s setting) {
	if n.server != writable || n.sync == s {
		return
	}
	if int(n.olders) == len(n.older) { // reloads do happen, if late
		copy(n.older[:], n.older[1:])
		n.olders--
	}
	n.older[n.olders] = n.sync
	n.olders++
	n.sync, n.proven, n.barrier = s, false, 0
}

func (m *Model) endRepair(w *World, i int, b pending) {
	n, s := &w.nodes[i], &w.nodes[b.other-1]
	if n.promised > b.at || s.leading != b.at || s.server != writable {
		return
	}
	w.copies++
	n.copy, n.data, n.log, n.noRewind, n.refused, n.began, n.from = w.copies, present, s.log, false, false, 0, begun{}
	n.unfitToRead, n.half = false, false
	n.renew = false
}

func (m *Model) follow(w *World, i, leader int, epoch uint16) {
	n := &w.nodes[i]
	if epoch < n.promised && m.flaw != flawPromise {
		return
	}
	m.checkSource(w, i, leader, epoch)
	n.promised = max(n.promised, epoch)
	w.hold(i)
	n.source, n.sourceEp, n.refused = uint8(leader+1), epoch, false
}

// mayStream reports whether node j could draw WAL from its source now, and from whom.
func (m *Model) mayStream(w *World, j int) (src int, ok bool) {
	n := &w.nodes[j]
	if !n.up || n.source == 0 || n.server != recovery || n.data != present || n.refused || m.cutOff(w, j) {
		return 0, false
	}
	src = int(n.source) - 1
	if m.cutOff(w, src) {
		return 0, false
	}
	s := &w.nodes[src]
	if m.mayFetch(w, j, src) {
		return src, m.logs.depth(n.log) < m.logs.depth(s.log)
	}
	if !s.up || s.server != writable || s.leading != n.sourceEp || s.leading == 0 {
		return 0, false
	}
	return src, !s.streams.has(j) || m.logs.depth(n.log) < m.logs.depth(s.log)
}

// stream opens j's stream, or carries one record over it and the report of its flush back.
func (m *Model) stream(w *World, j, src int) {
	n, s := &w.nodes[j], &w.nodes[src]
	depth := m.logs.depth(n.log)
	if m.mayFetch(w, j, src) {
		m.fetch(w, j, src)
		return
	}
	if !s.streams.has(j) {
		if depth > m.logs.depth(s.log) || m.logs.tli(m.logs.at(s.log, depth)) != m.logs.tli(n.log) {
			n.refused = true // histories differ
			return
		}
		if s.gotCopy[j] != 0 && s.gotCopy[j] != n.copy {
			s.proven, s.barrier = false, 0
		}
		s.streams |= one(j)
		s.gotCopy[j] = n.copy
	} else {
		r := m.logs.of(m.logs.at(s.log, depth+1))
		n.log, n.half = m.logs.append(n.log, r.tli, r.writer), false
	}
	s.got[j] = m.logs.depth(n.log)
}

// seal asks member j for its seal on behalf of candidate i.
func (m *Model) seal(w *World, i, j int) {
	if l := m.giveSeal(w, i, j); l.kind != noLetter {
		w.nodes[i].takeSeal(j, l)
	}
}

// giveSeal is the part of that at member j.
func (m *Model) giveSeal(w *World, i, j int) (l letter) {
	n, e := &w.nodes[j], w.nodes[i].sealEp
	if n.promised > e {
		return l
	}
	n.promised = e
	if m.flaw != flawSealOpen {
		w.hold(j)
	}
	if n.armed != 0 && n.armed < e && m.flaw != flawNoFence {
		w.fence(j)
	}
	if n.data != present || n.server == writable && m.flaw != flawNoFence {
		return l
	}
	return letter{
		kind: sealGiven, from: uint8(j + 1), to: uint8(i + 1), epoch: e, log: n.log, copy: n.copy,
		unfit: (n.quarantine || n.renew) && m.flaw != flawDistrusted, torn: n.half, late: n.slow && n.server == recovery,
	}
}

// mayAck returns the furthest commit that a server could report to its client as committed now, and the setting that
// allows it.
func (m *Model) mayAck(w *World, i int) (c wal, by setting, ok bool) {
	n := &w.nodes[i]
	if !n.isOpen() {
		return 0, by, false
	}
	best, by := m.replicated(w, i)
	return m.logs.at(n.log, best), by, best > n.endOfRec
}

// replicated returns how far a server's log is on as many members as a commit waits for, by a setting that some backend
// uses.
func (m *Model) replicated(w *World, i int) (best uint16, by setting) {
	n := &w.nodes[i]
	for s := range int(n.olders) + 1 {
		c := n.sync
		if s < int(n.olders) {
			c = n.older[s]
		}
		for d := m.logs.depth(n.log); d > best; d-- {
			have := 0
			for j := range m.n {
				if c.p.has(j) {
					have += m.counts(n, j, d)
				}
			}
			if have >= int(c.n) || n.free {
				best, by = d, c
				break
			}
		}
	}
	return best, by
}

// isOpen reports whether the gate of a primary was opened, and not shut again for its server's restart.
func (n *node) isOpen() bool {
	return n.server == writable && n.armed != 0 && n.opened == n.armed && n.restart == 0
}

// write makes a commit record on a server that is open for clients.
func (m *Model) write(w *World, i int) bool {
	n := &w.nodes[i]
	if !n.isOpen() {
		return false
	}
	n.log = m.logs.append(n.log, m.logs.tli(n.log), m.writer(i, n.armed))
	return true
}

// hold removes the source of node i's upstream.
func (w *World) hold(i int) {
	n := &w.nodes[i]
	n.source, n.sourceEp, n.refused = 0, 0, false
	w.dropStreams(i)
}

func (w *World) dropStreams(i int) {
	w.ends(i, -1)
	for j := range w.nodes {
		w.nodes[j].streams &^= one(i)
	}
}

// violation is a broken invariant.
type violation string

func fail(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }
