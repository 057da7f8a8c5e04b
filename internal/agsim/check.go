package agsim

// This file is what must hold in every world. S1 and its like are the properties of the safety specification.

// checkAck is called when a server reports a commit to its client.
func (m *Model) checkAck(w *World, i int, c wal, by setting) {
	n := &w.nodes[i]
	if n.armed < w.ackEpoch {
		return // a failover was forced since: losing this one was accepted
	}
	if n.armed < w.state.epoch && !m.logs.in(c, w.state.basis) {
		fail("%s of epoch %d acknowledged %s after %s led epoch %d without it (S4)", names[i], n.armed, m.logs.position(c),
			names[w.state.leader-1], w.state.epoch)
	}
	if _, required := m.group.CommitTarget(m.withData() - 1); int(by.n) < required && !m.loose {
		fail("%s acknowledged %s waiting for %d where REQUIRED is %d", names[i], m.logs.position(c), by.n, required)
	}
	if m.logs.in(c, w.acked) {
		return
	}
	if !m.logs.in(w.acked, c) {
		fail("%s acknowledged %s, whose history lacks the acknowledged %s (S1)", names[i], m.logs.position(c), m.logs.position(w.acked))
	}
	w.acked = c
}

// checkLead is called when an epoch enters LEAD: whoever leads has every acknowledged commit (S1).
func (m *Model) checkLead(w *World, i int) {
	if w.epoch.phase != lead {
		return
	}
	log := w.state.basis
	if w.epoch.forced {
		w.acked = m.logs.common(w.acked, log)
		w.ackEpoch = w.epoch.epoch
		return
	}
	if !m.logs.in(w.acked, log) {
		fail("%s leads epoch %d at %s without the acknowledged commit %s (S1)", names[i], w.epoch.epoch, m.logs.position(log), m.logs.position(w.acked))
	}
}

// checkCommit is called before a change of the record: nothing goes back (S2).
func (m *Model) checkCommit(w *World, b pending) {
	if b.hasState && !b.guardState {
		fail("/state was written without being compared")
	}
	if !b.hasEpoch {
		return
	}
	old := w.epoch
	if b.epoch.epoch < old.epoch || b.epoch.epoch == old.epoch && b.epoch.phase <= old.phase {
		fail("/epoch went from %d %s to %d %s (S2)", old.epoch, phases[old.phase], b.epoch.epoch, phases[b.epoch.phase])
	}
	if b.epoch.maxTLI < old.maxTLI {
		fail("the highest timeline id went from %d to %d", old.maxTLI, b.epoch.maxTLI)
	}
}

// checkTimeline is called when a server is promoted: no timeline id is used twice.
func (m *Model) checkTimeline(w *World, tli uint16) {
	if tli < 64 {
		if w.used>>tli&1 == 1 {
			fail("timeline %d was used twice", tli)
		}
		w.used |= 1 << tli
	}
}

// checkRepair is called when a copy is about to be rewound or replaced: not while the record counts it (S5).
func (m *Model) checkRepair(w *World, i int) {
	n := &w.nodes[i]
	if n.data == present && w.state.v[i] == n.copy {
		fail("%s destroys a copy the record counts in V (S5)", names[i])
	}
}

// check holds in every world: whatever copies of V a candidate could seal, one of them has the last acknowledged commit, hence
// every one. Equivalently, of the copies of V that still exist fewer than SealsNeeded lack it.
func (m *Model) check(w *World) {
	if w.state.k == 0 || w.ackEpoch > w.state.epoch {
		return
	}
	lacking := 0
	for j, c := range w.state.v {
		n := &w.nodes[j]
		if c != 0 && n.copy == c && n.data == present && !m.logs.in(w.acked, n.log) {
			lacking++
		}
	}
	if size := w.state.size(); lacking > size-int(w.state.k) {
		fail("V has %d members and k is %d, but %d of them lack the acknowledged commit %s", size, w.state.k, lacking, m.logs.position(w.acked))
	}
}
