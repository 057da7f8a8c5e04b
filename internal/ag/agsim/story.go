package agsim

import (
	"fmt"
	"strings"

	"github.com/coteriedb/coterie/internal/ag"
)

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
	case doConnect, doOpen, doAsk, doWaited, doCut, doReply:
		line = tellClient(ev)
	case doBeat:
		line = fmt.Sprintf("%s  acknowledges a heartbeat of %s", j, i)
	default:
		line = [...]string{
			doCrash: "%s  crashes", doServerCrash: "%s  loses its server", doWipe: "%s  loses its disk", doRestore: "%s  is restored to an earlier moment", doPlanned: "an operator plans a failover to %s",
			doForced: "an operator forces a failover to %s", doLose: "%s  gets no answer from the store",
			doIll: "%s's server is ill", doRecover: "%s's server is well again", doDistrust: "%s's storage loses a write", doResume: "an operator resumes %s",
			doForeign: "somebody changes a setting of %s", doTwice: "%s has two walsenders of a member", doAnnounce: "%s's agent announces a restart",
			doDetach: "%s's agent ends; its server goes on", doAttach: "%s's agent is back", doGone: "%s's keeper has waited long enough",
			doGiveUp: "%s gives the planned failover up",
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

// tellClient describes what happens to a session.
func tellClient(ev event) string {
	said := map[what]string{
		doConnect: "a client asks %s for session %d", doOpen: "%s opens session %d", doAsk: "%s's server runs what session %d asks",
		doWaited: "%s's members have the commit of session %d", doCut: "on %s the wait of session %d is cancelled", doReply: "%s has an answer for session %d",
	}[ev.what]
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
