package agsim

// events lists what may happen next.
func (m *Model) events(w *World, b Bounds, evs []event) []event {
	if w.late.kind != idle {
		evs = append(evs, event{doLate, w.lateBy, 0})
	}
	for k := range w.sessions {
		if m.clients {
			evs = m.clientEvents(w, k, evs)
		}
	}
	for i := range m.n {
		if m.votes && w.nodes[i].up {
			evs = m.voting(w, i, evs)
		}
		if !m.group.Replicas[i].HasData() {
			continue
		}
		n, x := &w.nodes[i], uint8(i)
		evs = m.oddities(w, i, evs)
		if !n.up {
			continue
		}
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
				if !n.seals.has(j) && w.nodes[j].up && m.group.Replicas[j].HasData() {
					evs = append(evs, event{doSeal, x, uint8(j)})
				}
			}
		}
		if w.losses > 0 && w.late.kind == idle && (n.busy.kind == committing || n.busy.kind == handing && n.server == down) {
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

// oddities lists what may be wrong with the server of node i, and how far what its agent does of its own accord may
// come.
func (m *Model) oddities(w *World, i int, evs []event) []event {
	n, x := &w.nodes[i], uint8(i)
	switch {
	case n.inPlace == away:
		return append(evs, event{doAttach, x, 0}, event{doGone, x, 0})
	case n.inPlace == announced:
		evs = append(evs, event{doDetach, x, 0})
	case w.restarts > 0 && m.mayRestart(w, i):
		evs = append(evs, event{doAnnounce, x, 0})
	}
	if n.busy.kind == handing {
		evs = append(evs, event{doGiveUp, x, 0})
	}
	if n.ill != healthy {
		evs = append(evs, event{doRecover, x, 0})
	}
	if n.quarantine {
		evs = append(evs, event{doResume, x, 0}, event{doResume, x, 1})
	}
	if w.ills == 0 || n.data != present {
		return evs
	}
	if n.server == writable {
		evs = append(evs, event{doIll, x, 0}, event{doIll, x, 1}, event{doForeign, x, 0})
		for j := range m.n {
			if n.streams.has(j) && !n.doubled.has(j) {
				evs = append(evs, event{doTwice, x, uint8(j)})
			}
		}
	}
	if n.server != down {
		evs = append(evs, event{doDistrust, x, 0})
	}
	return evs
}

// voting lists the events that node i may cause as a voter, and those of its own voters.
func (m *Model) voting(w *World, i int, evs []event) []event {
	n, x := &w.nodes[i], uint8(i)
	if m.voters.has(i) && n.busy.kind != committing && w.epoch.phase == lead && int(w.epoch.leader) != i+1 {
		if w.deaths > 0 || n.withheld == w.epoch.epoch {
			evs = append(evs, event{doTurn, x, sawDeath}, event{doTurn, x, sawDeath | sawQuiet})
		}
		if !m.group.Replicas[i].HasData() {
			evs = append(evs, event{doTurn, x, 0})
		}
	}
	if !m.group.Replicas[i].HasData() && n.busy.kind != idle {
		evs = append(evs, event{doPerform, x, 0})
	}
	if n.server == writable && n.armed != 0 {
		for j := range m.n {
			if j != i && (n.answerEp != n.armed || !n.answer.has(j)) && m.acknowledges(w, j, n.armed) {
				evs = append(evs, event{doBeat, x, uint8(j)})
			}
		}
	}
	return evs
}

func (m *Model) serving(w *World, i int, evs []event) []event {
	x := uint8(i)
	if n := &w.nodes[i]; w.writes > 0 && n.isOpen() {
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
