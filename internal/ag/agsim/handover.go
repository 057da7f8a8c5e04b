package agsim

import "github.com/coteriedb/coterie/internal/ag"

// This file is what a primary's agent does with its server's cooperation: hand over to another node, and restart while
// its server keeps running. Each can be given up, and can be cut short by a death, at every step.

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
		b.epoch.v, b.epoch.k = m.syncSet(w, i, to)
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

// syncSet is View.HandoverSyncSet in package ag.
func (m *Model) syncSet(w *World, i, to int) (v [maxMembers]copyID, k uint8) {
	ms, have := m.view(w, i, env{epoch: w.epoch, state: w.state, settings: w.settings}).HandoverSyncSet(names[to])
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

// detach ends the agent of node i. Its server keeps running, and its keeper waits for the successor.
func (m *Model) detach(w *World, i int) {
	n := &w.nodes[i]
	n.inPlace, n.up = away, false
	n.busy = pending{}
	n.seals, n.unfit, n.torn, n.sealEp = 0, 0, 0, 0
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
	outside := uint8(len(s.p.ids())) - in
	return st.k+outside <= s.n
}

// expire is the end of the keeper's wait: it fences, and the agent that starts later is like any other.
func (m *Model) expire(w *World, i int) {
	w.crash(i)
	w.nodes[i].up = true
}

// The next functions are how a candidate gets the end of the longest log from a member that may not be promoted.

// feed opens and closes node i for the candidate of the epoch it has sealed.
func (m *Model) feed(w *World, i int, v ag.View) {
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
