package agsim

import (
	"fmt"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/planguard"
	recoveries "github.com/coteriedb/coterie/internal/ag/recovery"
)

// This file is what must hold in every world. S1 and so on are the properties of docs/internals/safety.md,
// "Properties".

// decideAndCheck is Decide, and the check that the agent makes before it carries a plan out.
func decideAndCheck(v ag.View) ag.Plan {
	p := ag.Decide(v)
	if err := planguard.Check(v, p); err != nil {
		fail("%v", err)
	}
	return p
}

// checkAck is called when a server reports a commit to its client.
func (m *Model) checkAck(w *World, i int, c wal, by setting) {
	n := &w.nodes[i]
	if n.armed < w.ackEpoch || m.stories {
		return // a failover was forced since: the loss of this commit was accepted
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

// checkLead is called when an epoch enters LEAD: its leader must have every acknowledged commit (S1).
func (m *Model) checkLead(w *World, i int) {
	if w.epoch.phase != lead {
		return
	}
	if m.timed {
		m.led[w.epoch.epoch] = true
	}
	log := w.state.basis
	if m.stories {
		return
	}
	if w.epoch.forced {
		w.acked = m.logs.common(w.acked, log)
		w.ackEpoch = w.epoch.epoch
		return
	}
	if !m.logs.in(w.acked, log) {
		fail("%s leads epoch %d at %s without the acknowledged commit %s (S1)", names[i], w.epoch.epoch, m.logs.position(log), m.logs.position(w.acked))
	}
}

// checkCommit is called before a change of the record: epoch and state never go back (S2).
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
	if b.epoch.epoch == old.epoch && old.phase == seal {
		m.checkChosen(w, b.epoch)
	}
	if b.epoch.maxTLI < old.maxTLI {
		fail("the highest timeline id went from %d to %d", old.maxTLI, b.epoch.maxTLI)
	}
}

// checkChosen is called when a candidate chooses a copy. It must not be one that only a person may promote, unless it
// led last. Where the configuration changes, the mode may have changed since: checkFollowed goes by what the candidate
// has read.
func (m *Model) checkChosen(w *World, e epochRec) {
	i := e.leader - 1
	if m.altered {
		return
	}
	if m.group.Replicas[i].FailoverMode == ag.Manual && (w.state.leader != e.leader || w.state.copy != e.copy) {
		fail("%s is promoted by the agents, and is MANUAL", names[i])
	}
}

// checkFollowed is called with each plan: it follows the configuration that node i has read last.
func (m *Model) checkFollowed(w *World, i int, e env, p ag.Plan) {
	if !m.altered {
		return
	}
	g := m.groupWith(e.settings)
	switch p.Rule {
	case ag.RuleClaim, ag.RuleVote:
		if g.Maintenance != nil {
			fail("%s begins a takeover under maintenance (ConfigurationIsFollowed)", names[i])
		}
	case ag.RuleChoose:
		to := p.Commit.Epoch
		r, known := g.Replica(to.Leader)
		last := to.Leader == names[e.state.leader-1] && to.Copy == e.state.copy.id()
		if !last && (!known || !r.MayTakeOver() && r.AvailabilityMode == ag.SynchronousCommit) {
			fail("%s is promoted by the agents, and is MANUAL, suspended or under maintenance (ConfigurationIsFollowed)", to.Leader)
		}
	case ag.RuleServe:
		m.checkServes(w, i, e, g)
	default:
	}
}

// checkServes is called when a primary has nothing to change. Its commits wait for members that the configuration
// counts, for as many as it requires, and the record counts no others. They wait for as many as it wants while none of
// these has been silent for its session timeout.
func (m *Model) checkServes(w *World, i int, e env, g ag.Group) {
	n := &w.nodes[i]
	var eligible, suspended, heard set
	for _, r := range g.Replicas {
		j := index(r.ID)
		switch {
		case j == i || r.AvailabilityMode != ag.SynchronousCommit:
		case r.Suspended:
			suspended |= one(j)
		default:
			eligible |= one(j)
		}
		if n.streams.has(j) && e.silent[j] < g.Timeout(r) {
			heard |= one(j)
		}
	}
	if g.Required != nil { // one that was set is kept: commits wait for suspended members where there are no others
		for j := 0; j < m.n && eligible.size() < *g.Required; j++ {
			eligible |= suspended & one(j)
		}
	}
	want, required := g.CommitTarget(eligible.size())
	if heard&n.sync.p == n.sync.p {
		required = max(required, min(want, n.sync.p.size()))
	}
	if n.sync.p&^eligible != 0 || int(n.sync.n) < required {
		fail("%s serves, and its commits wait for %d of %v, where the configuration has %d of %v (ConfigurationIsFollowed)", names[i], n.sync.n, n.sync.p, required, eligible)
	}
}

// checkMembers is called when the record or the members have changed. A member that was removed does not lead, and did
// not lead last.
func (m *Model) checkMembers(w *World) {
	if w.settings.removed == 0 || m.astray {
		return
	}
	for _, who := range []uint8{w.epoch.leader, w.state.leader} {
		if who != 0 && w.settings.removed.has(int(who)-1) {
			fail("%s was removed, and the record says that it leads or led last (RemovedNeverLeads)", names[who-1])
		}
	}
}

// checkAnswers: AFTER an epoch was claimed by votes, no primary of an earlier one passes answers on (S3).
func (m *Model) checkAnswers(w *World) {
	for i := range m.n {
		n := &w.nodes[i]
		if n.armed != 0 && n.armed < w.byVotes && n.server == writable && n.lease == n.armed && n.opened == n.armed && m.answers(w, i) {
			fail("%s answers in epoch %d after epoch %d was claimed by votes (S3)", names[i], n.armed, w.byVotes)
		}
	}
}

// checkOpen is called when a server is about to be opened to clients, as its node sees the record: the next failover
// must not lose what clients could then read (S6).
func (m *Model) checkOpen(w *World, i int, e env) {
	n := &w.nodes[i]
	if n.opened == e.epoch.epoch && n.restart == 0 || e.state.k == 0 || e.epoch.forced || m.astray {
		return
	}
	if lacking, size := m.lacking(w, e.state, n.log), e.state.size(); lacking > size-int(e.state.k) {
		fail("%s opens at %s, which %d of the %d members of V lack, and k is %d (S6)", names[i], m.logs.position(n.log), lacking, size, e.state.k)
	}
}

// checkSilent is called when an epoch is claimed because its leader was silent for long. No server of an earlier epoch
// may still be writable, not even for what runs inside it (docs/internals/safety.md, "Lease"). Where the lease profile
// changes, one that was promoted and never led, so that nobody was let in, may still have a longer lease.
func (m *Model) checkSilent(w *World, b pending) {
	if !m.timed || !b.silent {
		return
	}
	for i := range m.n {
		if n := &w.nodes[i]; n.server == writable && n.armed < b.epoch.epoch && (!m.altered || m.led[n.armed]) {
			fail("%s is still writable in epoch %d when epoch %d is claimed after silence", names[i], n.armed, b.epoch.epoch)
		}
	}
}

// checkTimeline is called when a server is promoted: no timeline id may be used twice.
func (m *Model) checkTimeline(w *World, tli uint16) {
	if tli < 64 && !m.stories {
		if w.used>>tli&1 == 1 {
			fail("timeline %d was used twice", tli)
		}
		w.used |= 1 << tli
	}
}

// checkReadable is called with the view of node i. While the view is of the present record and that names a leader, a
// copy that serves readers is a state of the leader's history (S7).
func (m *Model) checkReadable(w *World, i int, e env, v *ag.View) {
	n := &w.nodes[i]
	if e.noQuorum || m.stories || w.epoch.phase != lead || e.epoch != w.epoch || e.state != w.state {
		return
	}
	inHistory := m.logs.in(n.log, w.state.basis) || m.logs.in(w.state.basis, n.log)
	n.unfitToRead = m.clients && n.data == present && !inHistory
	if inHistory {
		return
	}
	reads := v.Readable()
	if m.flaw == flawReadable {
		reads = v.Local.Server == ag.ServerRecovery && v.Local.Data == ag.DataPresent && v.Busy == ""
	}
	if reads {
		fail("%s serves readers at %s, which is not in the history of epoch %d (S7)", names[i], m.logs.position(n.log), w.state.epoch)
	}
}

// checkRepair is called when a copy is about to be rewound or replaced: the record must not count it (S5).
func (m *Model) checkRepair(w *World, i int) {
	n := &w.nodes[i]
	if n.data == present && w.state.v[i] == n.copy {
		fail("%s destroys a copy the record counts in V (S5)", names[i])
	}
}

// check holds in every world. Of any copies of V that a candidate can seal, one has the last acknowledged commit, and
// so every acknowledged commit. In other words, of the copies of V that still exist, fewer than SealsNeeded lack it.
func (m *Model) check(w *World) {
	if m.votes {
		m.checkAnswers(w)
	}
	if w.state.k == 0 || w.ackEpoch > w.state.epoch || m.astray {
		return
	}
	lacking, size := m.lacking(w, w.state, w.acked), w.state.size()
	if lacking > size-int(w.state.k) {
		fail("V has %d members and k is %d, but %d of them lack the acknowledged commit %s", size, w.state.k, lacking, m.logs.position(w.acked))
	}
	for j := range m.n {
		if n := &w.nodes[j]; w.settings.removed.has(j) && w.state.v[j] != 0 && (n.copy != w.state.v[j] || n.data != present || m.logs.in(w.acked, n.log)) {
			lacking++
		}
	}
	if lacking > size-int(w.state.k) {
		fail("V has %d members and k is %d: %d of them lack the acknowledged commit %s, or were removed (RemovedCountsForNothing)",
			size, w.state.k, lacking, m.logs.position(w.acked))
	}
}

// lostQuorum is what a person finds if all members end now, some with their disks, and the quorum's store with them.
// The person has one of the others lead, by what they say. If that one is not told to be behind another, it has every
// acknowledged commit that another has; but a copy that a forced failover left may not know that another one was forced
// after it, and made good again what was given up. Without forced failovers one of them is told to be behind nobody who
// may lead, but for copies of earlier timelines, of which it is told that they went apart, and has all that these have
// (RecoveryLosesNothing).
func (s *Sim) lostQuorum() {
	if s.losses.IntN(100) != 0 || s.backwards {
		return
	}
	m, g := s.m, ag.Group{ID: "g"}
	var said []recoveries.Account
	var lost []ag.ReplicaID
	for i, r := range m.group.Replicas {
		switch {
		case s.w.settings.removed.has(i):
			continue
		case s.losses.IntN(3) == 0:
			lost = append(lost, r.ID)
		default:
			said = append(said, s.account(i))
		}
		g.Replicas = append(g.Replicas, r)
	}
	s.recoveredTwice(recoveries.Request{Group: g, Accounts: said, Lost: lost})
	best, forced := ag.ReplicaID(""), s.w.ackEpoch > 0
	fit := func(a recoveries.Account) bool { return a.Unfit == "" && a.Copy != "" }
	for _, a := range said {
		r, err := recoveries.Recover(recoveries.Request{Group: g, Lead: a.ID, Accounts: said, Lost: lost, History: m.logs.timelines(s.w.nodes[index(a.ID)].log)})
		behind := func(b recoveries.Account) bool {
			return slices.Contains(r.Ahead, b.ID) && !slices.Contains(r.Apart, b.ID)
		}
		if err == nil && !slices.ContainsFunc(said, func(b recoveries.Account) bool { return fit(b) && behind(b) }) {
			best = a.ID
		}
		log := s.w.nodes[index(a.ID)].log
		switch {
		case err != nil, slices.ContainsFunc(said, behind), forced && len(r.Apart) > 0:
			continue
		case forced && !m.logs.in(log, s.w.state.basis) && !m.logs.in(s.w.state.basis, log):
			continue
		}
		has := func(id ag.ReplicaID) wal { return m.logs.common(s.w.acked, s.w.nodes[index(id)].log) }
		for _, b := range said {
			if b.Copy != "" && m.logs.depth(has(b.ID)) > m.logs.depth(has(a.ID)) {
				fail("%s would lead after the loss of the quorum at %s, with %s as no loss, which has the acknowledged commit %s (RecoveryLosesNothing)",
					a.ID, a.Position, b.ID, m.logs.position(has(b.ID)))
			}
		}
	}
	if best == "" && !forced && slices.ContainsFunc(said, fit) {
		fail("whoever would lead after the loss of the quorum, another is told to be ahead: %+v (RecoveryLosesNothing)", said)
	}
}

// recoveredTwice is a person who runs the recovery on two members. The account of the first bars the second. If the
// person took the accounts before, both lead: then their histories have two timeline ids, and whichever of them leads
// after a later recovery, the other one is told to be ahead.
func (s *Sim) recoveredTwice(q recoveries.Request) {
	type lead struct {
		id ag.ReplicaID
		recoveries.Recovery
	}
	var leads []lead
	for _, a := range q.Accounts {
		q.Lead = a.ID
		if r, err := recoveries.Recover(q); err == nil {
			leads = append(leads, lead{a.ID, r})
		}
	}
	for _, first := range leads {
		for _, second := range leads {
			a, b := first.id, second.id
			if a == b {
				continue
			}
			barred, after := q, q
			barred.Lead, after.Lead = b, b
			barred.Accounts, after.Accounts = slices.Clone(q.Accounts), slices.Clone(q.Accounts)
			barred.Accounts[slices.IndexFunc(q.Accounts, func(x recoveries.Account) bool { return x.ID == a })].Founds = first.Epoch.Epoch
			if _, err := recoveries.Recover(barred); err == nil {
				fail("%s and %s are to found a quorum each (RecoveryLosesNothing)", a, b)
			}
			for i := range after.Accounts {
				switch x := &after.Accounts[i]; x.ID {
				case a:
					x.Epoch, x.Seq, x.Store, x.Unled, x.Position.Timeline = first.Epoch.Epoch, first.State.Seq, 1, ag.Position{}, first.Epoch.TLI
				case b:
					x.Epoch, x.Seq, x.Store, x.Unled, x.Position.Timeline = second.Epoch.Epoch, second.State.Seq+1, 2, ag.Position{}, second.Epoch.TLI
					x.Position.LSN = second.Epoch.From.LSN + 1<<20
				}
			}
			if r, err := recoveries.Recover(after); first.Epoch.TLI == second.Epoch.TLI || err != nil || !slices.Contains(r.Ahead, a) {
				fail("%s and %s founded a quorum each, on timelines %d and %d, and %s is to lead: %v is ahead, %v (RecoveryLosesNothing)",
					a, b, first.Epoch.TLI, second.Epoch.TLI, b, r.Ahead, err)
			}
		}
	}
}

// account is what node i says from its disk (StoppedNode.Account in package provision).
func (s *Sim) account(i int) recoveries.Account {
	n, seen := &s.w.nodes[i], s.seen[i]
	a := recoveries.Account{Group: "g", ID: names[i], Promised: ag.Epoch(n.promised), Epoch: ag.Epoch(seen.epoch), Seq: uint64(seen.seq), MaxTLI: ag.Timeline(n.began)}
	if n.data != present {
		a.Unfit = "it has no whole copy"
		return a
	}
	if n.quarantine || n.renew {
		a.Unfit = "its copy is under quarantine"
	}
	a.Copy, a.Position = n.copy.id(), s.m.logs.position(n.log)
	if a.MaxTLI = max(a.MaxTLI, a.Position.Timeline); s.m.unled(n) {
		a.Unled = s.m.logs.position(n.from.log)
	}
	return a
}

// lacking counts the members of V whose copy exists and lacks the commit.
func (m *Model) lacking(w *World, st stateRec, c wal) (lacking int) {
	for j, id := range st.v {
		n := &w.nodes[j]
		if id != 0 && n.copy == id && n.data == present && !m.logs.in(c, n.log) {
			lacking++
		}
	}
	return lacking
}

// recovers lets the group be repaired, fairly: every node answers, every message arrives, every illness ends, and a
// person resumes what is under quarantine. It returns why the group does not come to rest; "" if it does. A world from
// which no action of the model leads on would be one that is stuck for good.
func (m *Model) recovers(w World) (stuck string) {
	w.faults, w.writes, w.ops, w.wipes, w.losses, w.deaths, w.ills, w.restarts, w.asks, w.tears = 0, 0, 0, 0, 0, 9, 0, 0, 0, 0
	w.op, w.opTo, w.opEpoch, w.changes, w.removing, w.settings = "", 0, 0, 0, 0, w.settings.membership()
	silent, unmoved := -1, 0 // if nothing happens, one node after the other finds the silence of others to be long
	for range 100 {
		before := w
		for i := range m.n {
			m.help(&w, i, silent == i)
		}
		if stuck = m.restless(&w); stuck == "" || unmoved > 3*m.n {
			return stuck
		}
		if silent = -1; w == before {
			unmoved++
			silent = unmoved % m.n
		} else {
			unmoved = 0
		}
	}
	return stuck
}

// help lets node i do what it can.
func (m *Model) help(w *World, i int, silence bool) {
	n := &w.nodes[i]
	if n.inPlace != settled {
		m.expire(w, i)
	}
	n.ill, n.stood = healthy, false
	if needed := int(w.state.leader) == i+1 || w.epoch.phase != lead; n.quarantine || n.renew && needed {
		w.resume(i, needed)
	}
	if !m.group.Replicas[i].HasData() || m.cutOff(w, i) {
		return
	}
	for range 12 {
		if before := *w; before.nodes[i].busy.kind != idle {
			m.apply(w, event{doPerform, uint8(i), 0})
		} else {
			saw := uint8(0)
			if silence {
				saw, silence = sawSilence, false
			}
			m.apply(w, event{doTurn, uint8(i), saw})
		}
		for j := range m.n {
			if m.mayAskSeal(w, i, j) {
				m.seal(w, i, j)
			}
			for k := 0; k < 20; k++ {
				src, ok := m.mayStream(w, j)
				if !ok {
					break
				}
				m.stream(w, j, src)
			}
		}
		m.check(w)
	}
}

// restless returns why the group is not ready; "" if it is.
func (m *Model) restless(w *World) string {
	p := int(w.epoch.leader) - 1
	if n := &w.nodes[p]; w.epoch.phase != lead || !n.isOpen() || n.armed != w.epoch.epoch {
		return fmt.Sprintf("nobody serves: %s; %s", m.recordLine(w), m.nodeLine(w, p))
	}
	for j := range m.n {
		if j != p && m.group.Replicas[j].HasData() && !w.settings.removed.has(j) && (w.state.v[j] == 0 || w.state.v[j] != w.nodes[j].copy) {
			return fmt.Sprintf("%s stays out: %s", names[j], m.recordLine(w))
		}
	}
	return ""
}
