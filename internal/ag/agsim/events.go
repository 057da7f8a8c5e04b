package agsim

import (
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

// events lists what may happen next.
func (m *Model) events(w *World, b Bounds, evs []event) []event {
	if w.late.kind != idle {
		evs = append(evs, event{doLate, w.lateBy, 0})
	}
	evs = m.letters(w, evs)
	for k := range w.sessions {
		if m.clients {
			evs = m.clientEvents(w, k, evs)
		}
	}
	if m.altered {
		evs = m.changes(w, evs)
	}
	for i := range m.n {
		if m.cutOff(w, i) {
			continue
		}
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
		for j := range m.n {
			if m.mayAskSeal(w, i, j) {
				evs = append(evs, event{doSeal, x, uint8(j)})
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
			if j != i && m.group.Replicas[j].HasData() && !n.doubled.has(j) {
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
	if w.declared.voters.has(i) && n.busy.kind != committing && w.epoch.phase == lead && int(w.epoch.leader) != i+1 {
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
			if j != i && n.obeys.voters.has(j) && (n.answerEp != n.armed || !n.answer.has(j)) && m.acknowledges(w, j, n.armed) {
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

// story tells a history in the way in which an incident is reported.
func (m *Model) story(b Bounds, path []event) string {
	var s strings.Builder
	w := m.first(b)
	fmt.Fprintf(&s, "%d members, %s; %s\n", m.n, m.group.CommitRule, m.recordLine(&w))
	for k, ev := range path {
		fmt.Fprintf(&s, "%3d. %s\n", k+1, m.tell(&w, ev))
	}
	return s.String()
}

// tell makes the event happen and returns its description.
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
	case doConnect, doOpen, doAsk, doWaited, doCut, doReply, doChange:
		line = m.tellAsked(&before, ev)
	case doTear, doSealLate, doFlushLate, doArrive:
		line = tellLetter(&before, ev)
	case doBeat:
		line = fmt.Sprintf("%s  acknowledges a heartbeat of %s", j, i)
	default:
		line = [...]string{
			doCrash: "%s  crashes", doServerCrash: "%s  loses its server", doWipe: "%s  loses its disk", doRestore: "%s  is restored to an earlier moment", doPlanned: "an operator plans a failover to %s",
			doForced: "an operator forces a failover to %s", doLose: "%s  gets no answer from the store",
			doIll: "%s's server is ill", doRecover: "%s's server is well again", doDistrust: "%s's storage loses a write", doResume: "an operator resumes %s",
			doForeign: "somebody changes a setting of %s", doTwice: "%s has two walsenders of a member", doAnnounce: "%s's agent announces a restart",
			doDetach: "%s's agent ends; its server goes on", doAttach: "%s's agent is back", doGone: "%s's keeper has waited long enough",
			doGiveUp: "%s gives the planned failover up", doRemove: "%s is removed",
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
	default: // described above, before it happened
	}
	m.tidy(w)
	m.check(w)
	return line
}

// tellAsked describes what a client or an operator does.
func (m *Model) tellAsked(before *World, ev event) string {
	if ev.what == doChange {
		return tellChange(before.settings, int(ev.i), change(ev.j))
	}
	return tellClient(ev)
}

// tellChange describes what an operator asks for.
func tellChange(old settings, i int, to change) string {
	said := func(on bool, is, was string) string {
		if on {
			return "an operator ends that " + was
		}
		return "an operator says that " + is
	}
	switch name := string(names[i]); to {
	case toSuspended:
		return said(old.suspended.has(i), name+" is suspended", name+" is suspended")
	case toAsync:
		return said(old.async.has(i), name+" is asynchronous", name+" is asynchronous")
	case toManual:
		return said(old.manual.has(i), name+" has the other failover mode", name+" has the other failover mode")
	case toMaintained:
		return said(old.maintained.has(i), name+" is under maintenance", name+" is under maintenance")
	case toRequired:
		return fmt.Sprintf("an operator requires %d synchronized secondaries", i)
	case toAll:
		return "an operator changes the commit rule"
	case toMaintenance:
		return said(old.maintenance, "the group is under maintenance", "the group is under maintenance")
	case toRemoved:
		return "an operator begins to remove " + name
	default:
		return name + " joins again"
	}
}

// tellLetter describes what happens to a message.
func tellLetter(before *World, ev event) string {
	switch i, j := names[ev.i], names[ev.j%maxMembers]; ev.what {
	case doTear:
		return fmt.Sprintf("%s  receives the beginning of a record", i)
	case doArrive:
		return fmt.Sprintf("what %s said arrives", names[max(before.letter.from, 1)-1])
	default:
		return fmt.Sprintf("%s  answers %s, and the answer is on its way", j, i)
	}
}

// tellClient describes what happens to a session.
func tellClient(ev event) string {
	said := map[what]string{
		doConnect: "a client asks %s for session %d", doOpen: "%s opens session %d", doAsk: "%s's server runs what session %d asks",
		doWaited: "%s's members have the commit of session %d", doCut: "on %s the wait of session %d is cancelled", doReply: "%s has an answer for session %d",
	}[ev.what]
	if ev.what == doAsk && ev.j>>4 == 2 {
		said += ", to change reserved settings"
	}
	if ev.j>>4 == 1 {
		said += map[what]string{doConnect: ", as that of a primary", doAsk: ", a write"}[ev.what]
	}
	return fmt.Sprintf(said, names[ev.i], ev.j&15)
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

// The next part is a store that goes back in time, or tells two stories, where there are clocks.

// mark is the latest record that a node has seen; it is on its disk.
type mark struct {
	epoch  uint16
	seq    int
	chosen uint8 // counted from 1, as leaders are
	led    uint16
	by     uint8
}

// judge refuses a record that is older than one seen before, or names another leader of an epoch.
func (s *Sim) judge(i int) (trusted bool) {
	e, st := s.w.epoch, s.w.state
	was, now := s.seen[i], mark{epoch: e.epoch, seq: s.seq, led: st.epoch, by: st.leader}
	if e.phase != seal {
		now.chosen = e.leader
	}
	other := was.chosen != 0 && now.epoch == was.epoch && now.chosen != was.chosen || now.led == was.led && now.by != was.by && was.by != 0
	switch {
	case (now.epoch < was.epoch || now.seq < was.seq) && s.m.flaw != flawBelieve, other && s.m.flaw != flawSecond:
		return false
	}
	s.seen[i] = now
	return true
}

// tale is how far a store that tells two stories has come: the replica that leads is cut off, and then the only one
// that the store answers, with the record of that moment. Another one has come to lead meanwhile, and is dead.
type tale struct {
	then  moment
	epoch uint16 // that the other one leads; 0: none does yet
	who   int    // counted from 1; 0: it has not begun
	told  bool   // to all that live
}

// tell takes the next step of a tale. In the end the others are told who leads, by the story that they do not know.
func (s *Sim) tell() {
	t, all := &s.tale, set(1<<s.m.n-1)
	if s.odds.stories == 0 || s.well || t.told {
		return
	}
	leads := s.w.epoch.phase == lead
	switch {
	case t.who == 0 && leads && s.chance(s.odds.stories):
		t.who, t.then = int(s.w.epoch.leader), moment{s.w.epoch, s.w.state, s.seq}
		s.say("%s is cut off", names[t.who-1])
		s.apart(t.who - 1)
	case t.who == 0 || !leads || int(s.w.epoch.leader) == t.who && t.epoch == 0:
	case t.epoch == 0 && s.chance(1000):
		t.epoch = s.w.epoch.epoch
		s.say("the store has %s know nothing of epoch %d, and the others of what it does", names[t.who-1], t.epoch)
		s.crash(int(s.w.epoch.leader)-1, 2*troubled)
		s.goBackTo(t.then)
		s.cutStore = all &^ one(t.who-1)
	case t.epoch != 0 && int(s.w.epoch.leader) == t.who:
		t.told = true
		s.say("all are told that %s leads epoch %d", names[t.who-1], s.w.epoch.epoch)
		s.cutStore, s.cut = 0, [maxMembers]set{}
	}
}

// apart cuts node i off from all others, and from the store.
func (s *Sim) apart(i int) {
	all := set(1<<s.m.n - 1)
	s.cutStore |= one(i)
	s.cut[i] = all &^ one(i)
	for j := range s.m.n {
		if j != i {
			s.cut[j] |= one(i)
		}
	}
}

// checkSource is called when a node follows a leader: in one epoch it is always the same one. Commits of the first one
// may rest on this node's copy, and the second one lacks them.
func (m *Model) checkSource(w *World, i, leader int, epoch uint16) {
	if !m.stories || w.epoch.phase != lead {
		return
	}
	if m.followed == nil {
		m.followed = map[[2]uint16]int{}
	}
	at := [2]uint16{uint16(i), epoch}
	if was, ok := m.followed[at]; ok && was != leader {
		fail("%s follows %s in epoch %d, in which it followed %s (OneLeaderOfAnEpoch)", names[i], names[leader], epoch, names[was])
	}
	m.followed[at] = leader
}
