package agsim

import (
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// odds are the chances of faults per tick, in 1/10000. Each run draws its own, most of them zero: histories with few
// kinds of faults reach further than histories with all kinds (swarm testing).
type odds struct {
	crash, serverCrash, pause, cutStore, cutPeer, reject, storeDown, wipe, planned, forced, suspend, lostAnswer, badRewind, hang int
	ill, distrust, foreign, twice, restart, giveUp, back, suspicion, tear, delay, alter                                          int
	remove, profile, strict, unsure, replace, stories, slow                                                                      int
}

// lag has copies come to have long to replay, or have it done.
func (s *Sim) lag() {
	for i := range s.m.n {
		if n := &s.w.nodes[i]; s.odds.slow > 0 && s.lags.IntN(10000) < s.odds.slow {
			n.slow = !n.slow
		}
	}
}

func (s *Sim) chance(of10000 int) bool { return s.rng.IntN(10000) < of10000 }

func (s *Sim) draw() {
	for _, o := range []struct {
		p   *int
		max int
	}{
		{&s.odds.crash, 40},
		{&s.odds.serverCrash, 40},
		{&s.odds.pause, 40},
		{&s.odds.cutStore, 40},
		{&s.odds.cutPeer, 60},
		{&s.odds.reject, 60},
		{&s.odds.storeDown, 20},
		{&s.odds.wipe, 10},
		{&s.odds.planned, 80},
		{&s.odds.forced, 10},
		{&s.odds.suspend, 20},
		{&s.odds.lostAnswer, 3000},
		{&s.odds.badRewind, 3000},
		{&s.odds.hang, 3000},
		{&s.odds.ill, 40},
		{&s.odds.distrust, 10},
		{&s.odds.foreign, 20},
		{&s.odds.twice, 30},
		{&s.odds.restart, 60},
		{&s.odds.giveUp, 5000},
		{&s.odds.tear, 500},
		{&s.odds.delay, 3000},
		{&s.odds.alter, 60},
	} {
		if s.chance(5000) {
			*o.p = 1 + s.rng.IntN(o.max)
		}
	}
	if s.chance(5000) {
		s.odds.forced = 0
	}
	if s.chance(500) {
		s.odds.back = 20
	}
}

// suspects reports whether node i takes the leader of the epoch for silent. It has heard of it before.
func (s *Sim) suspects(i int, e env) bool {
	t := &s.nodes[i]
	return s.now < t.suspectsUntil && t.beatEp == e.epoch.epoch && int(e.epoch.leader)-1 != i
}

// trouble draws this tick's faults.
func (s *Sim) trouble() {
	m, o := s.m, s.odds
	i, j := s.rng.IntN(m.n), s.rng.IntN(m.n)
	long := 1 + s.rng.IntN(300)
	n := &s.w.nodes[i]
	data := m.group.Replicas[i].HasData()
	switch {
	case s.chance(o.crash):
		s.say("%s crashes", names[i])
		s.crash(i, long)
	case s.chance(o.serverCrash) && n.server != down:
		s.say("%s loses its server", names[i])
		n.halfPromoted()
		s.w.stop(i)
		if n.busy.kind != committing {
			n.busy = pending{}
		}
	case s.chance(o.pause):
		s.say("%s's agent hangs", names[i])
		s.nodes[i].pausedUntil = s.now + long
	case s.chance(o.cutStore):
		s.cutStore ^= one(i)
	case s.chance(o.cutPeer):
		s.cut[i] ^= one(j)
		s.cut[j] = s.cut[j]&^one(i) | s.cut[i]>>j&1<<i
	case s.chance(o.reject):
		s.mistake(i, j)
	case s.chance(o.storeDown):
		s.storeDown = s.now + long
	case s.chance(o.wipe) && data && n.data == present && s.spare(i):
		s.crash(i, long)
		if depth := m.logs.depth(n.log); s.chance(5000) && depth > 1 {
			s.say("%s's disk is restored to an earlier moment", names[i])
			m.restore(&s.w, i, depth-uint16(s.rng.IntN(min(20, int(depth)))))
		} else {
			s.say("%s loses its disk", names[i])
			s.w.wipe(i)
		}
		n.up = false
	case s.chance(o.planned) && s.w.op == "" && data && s.w.epoch.phase == lead && !s.w.settings.removed.has(i):
		s.say("an operator plans a failover to %s", names[i])
		s.w.op, s.w.opTo, s.w.opEpoch, s.w.opNow = ag.OpPlanned, uint8(i+1), s.w.epoch.epoch, false
	case s.chance(o.forced) && data && n.data == present && !s.w.settings.removed.has(i):
		s.say("an operator forces a failover to %s", names[i])
		s.w.op, s.w.opTo, s.w.opEpoch, s.w.opNow = ag.OpForced, uint8(i+1), s.w.epoch.epoch, s.chance(2000)
	case s.chance(o.suspend) && data && !n.quarantine:
		s.w.settings.suspended ^= one(i)
	case s.chance(o.alter):
		s.alter(i)
	default:
		s.incident(i, j)
	}
}

// incident draws the faults inside node i, and the orders to its agent.
func (s *Sim) incident(i, j int) {
	m, o := s.m, s.odds
	n, t := &s.w.nodes[i], &s.nodes[i]
	switch {
	case s.chance(o.ill) && n.server != down:
		n.ill = ill + illness(s.rng.IntN(2))
		t.illUntil = s.now + 1 + s.rng.IntN(300)
		s.say("%s's server is ill", names[i])
	case s.chance(o.distrust) && n.server != down && !n.quarantine && !n.renew:
		s.say("%s's storage loses a write", names[i])
		s.w.distrust(i)
		t.resumeAt = s.now + 50 + s.rng.IntN(600)
	case s.chance(o.foreign) && n.server == writable:
		s.say("somebody changes a setting of %s", names[i])
		n.foreign = true
	case s.chance(o.twice) && n.server == writable && i != j && m.group.Replicas[j].HasData():
		s.say("%s has a walsender in the name of %s that is not its own", names[i], names[j])
		s.w.twice(i, j)
	case s.chance(o.restart) && s.quorum(i) && t.pausedUntil <= s.now && m.mayRestart(&s.w, i):
		s.say("%s's agent restarts", names[i])
		m.announce(&s.w, i)
		s.leadRev++
		t.open = false
		t.backAt = s.now + 1 + s.rng.IntN(60)
	case s.chance(o.back) && len(s.past) > 0 && !s.backwards:
		s.goBack()
	}
}

// moment is the contents of the store at one time.
type moment struct {
	epoch epochRec
	state stateRec
	seq   int
}

// remember keeps some of the store's contents for a later restore.
func (s *Sim) remember() {
	if s.odds.back > 0 && s.chance(300) {
		s.past = append(s.past, moment{s.w.epoch, s.w.state, s.seq})
	}
}

// goBack restores the store to an earlier moment, before a record that every node has since seen. A node without that
// knowledge believes the store. From then on no person helps, and the group need not come to rest.
func (s *Sim) goBack() {
	then := s.past[s.rng.IntN(len(s.past))]
	for i := range s.m.n {
		if seen := s.seen[i]; seen.epoch <= then.epoch.epoch && seen.seq <= then.seq {
			return
		}
	}
	s.goBackTo(then)
}

func (s *Sim) goBackTo(then moment) {
	s.say("the store is restored to %v of epoch %d", phases[then.epoch.phase], then.epoch.epoch)
	s.backwards, s.m.astray = true, true
	s.w.epoch, s.w.state, s.seq = then.epoch, then.state, then.seq
	s.w.released, s.w.restarting, s.w.settled = false, false, false
	s.epochRev++
	s.stateRev++
	s.leadRev++
	for i := range s.m.n {
		b := &s.w.nodes[i].busy
		b.staleEpoch, b.staleState, b.staleLead = true, true, true
	}
}

// person ends quarantines, and illnesses end without help. Where a leader is needed, the person trusts a copy as it is.
func (s *Sim) person(i int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	if n.ill != healthy && t.illUntil <= s.now {
		n.ill = healthy
	}
	if n.stood && t.stoodAt == 0 {
		t.stoodAt = s.now
	}
	if n.stood && t.stoodAt+600 <= s.now {
		n.stood, t.stoodAt = false, 0
	}
	needed := int(s.w.state.leader) == i+1 || s.w.epoch.phase != lead
	if n.quarantine {
		s.w.settings.suspended |= one(i) // the agent asks for it
		if t.resumeAt <= s.now {
			s.say("an operator resumes %s", names[i])
			s.w.settings.suspended &^= one(i)
			s.w.resume(i, needed)
		}
	}
	if n.renew && s.well && needed && s.now%200 == 0 {
		s.w.resume(i, true)
	}
}

// inPlace performs the events of node i's server while its agent restarts.
func (s *Sim) inPlace(i int) {
	n, t := &s.w.nodes[i], &s.nodes[i]
	switch {
	case n.inPlace == announced && s.mayLeave(i):
		t.fenceAt = min(s.now+ticks(3*time.Second), int(float64(t.deadline)/s.rate[i]/float64(tick)))
		s.m.detach(&s.w, i)
		*t = simNode{line: t.line, quietAt: s.now, backAt: t.backAt, fenceAt: t.fenceAt, deadline: t.deadline, granted: t.granted, illUntil: t.illUntil, resumeAt: t.resumeAt}
	case n.inPlace != away:
	case s.now >= t.fenceAt && s.m.flaw != flawDetached:
		s.say("%s's keeper fences: nobody has come", names[i])
		s.m.expire(&s.w, i)
		s.w.nodes[i].up = false
		*t = simNode{downUntil: max(s.now, t.backAt), line: t.line, quietAt: max(s.now, t.backAt), illUntil: t.illUntil, resumeAt: t.resumeAt}
	case s.now >= t.backAt && s.quorum(i) && s.judge(i):
		s.m.attach(&s.w, i)
		s.leadRev++
		t.seenAt, t.quietAt = s.now, s.now
		if n.lease != 0 {
			t.last.settings = s.w.settings
			t.want, t.renewAt = n.lease, s.now
			s.renew(i, s.now-1)
			s.say("%s's agent is back, and its server still leads", names[i])
		}
	}
}

// mayLeave reports whether the agent of node i, which has announced its restart, may end: nothing has happened since.
func (s *Sim) mayLeave(i int) bool {
	n := &s.w.nodes[i]
	if n.server == writable && n.lease == n.armed && n.busy.kind == idle && s.w.epoch.epoch == n.armed && s.w.epoch.phase == lead && s.nodes[i].pausedUntil <= s.now {
		return true
	}
	n.inPlace = settled // given up
	return false
}

// mistake makes a firewall end and refuse connections: between two members, or all of one.
func (s *Sim) mistake(i, j int) {
	all := set(1<<s.m.n - 1)
	switch {
	case s.reject[i] != 0:
		for k := range s.m.n {
			s.reject[k] &^= one(i)
		}
		s.reject[i] = 0
	case s.chance(5000):
		s.say("connections of %s are refused", names[i])
		s.reject[i] = all &^ one(i)
		for k := range s.m.n {
			if k != i {
				s.reject[k] |= one(i)
			}
		}
	case i != j:
		s.reject[i] |= one(j)
		s.reject[j] |= one(i)
	}
}

// spare reports whether the group can do without the disk of node i and without a person. It cannot while the record
// names its copy alone: from a promotion until others have caught up.
func (s *Sim) spare(i int) bool {
	w := &s.w
	return int(w.state.leader) != i+1 && (int(w.epoch.leader) != i+1 || w.epoch.phase == promote && w.nodes[i].server != writable)
}

func (s *Sim) crash(i, long int) {
	s.w.crash(i)
	if s.m.flaw == flawForgetPromise {
		s.w.nodes[i].promised = 0
	}
	s.m.restarted(&s.w, i)
	s.w.nodes[i].up = false
	line := s.nodes[i].line
	s.nodes[i] = simNode{downUntil: s.now + long, line: line, quietAt: s.now + long}
}

func (s *Sim) heal() {
	s.say("healed")
	s.well = true
	s.cutStore, s.cut, s.reject, s.storeDown, s.w.op = 0, [maxMembers]set{}, [maxMembers]set{}, 0, ""
	s.w.settings, s.w.removing = s.w.settings.membership(), 0
	for i := range s.m.n {
		t := &s.nodes[i]
		t.pausedUntil, t.downUntil, t.illUntil, t.suspectsUntil = 0, min(t.downUntil, s.now), 0, 0
		t.resumeAt = min(t.resumeAt, s.now+s.rng.IntN(100))
	}
}

func (w *World) stopLeading(i int) {
	n := &w.nodes[i]
	w.ends(-1, i)
	n.leading, n.streams, n.doubled = 0, 0, 0
	n.got, n.gotCopy = [maxMembers]uint16{}, [maxMembers]copyID{}
}

// stop ends the server of node i, which keeps its log.
func (w *World) stop(i int) {
	n := &w.nodes[i]
	w.stopLeading(i)
	w.dropStreams(i)
	w.cutSessions(i)
	n.takes &= isPromoting
	n.server, n.endOfRec, n.proven, n.barrier = down, 0, false, 0
	n.sync, n.older, n.olders = setting{}, [3]setting{}, 0
	n.foreign, n.free, n.attached, n.restart = false, false, false, 0
}

// fence makes writes impossible on node i and ends what it was doing.
func (w *World) fence(i int) {
	n := &w.nodes[i]
	if n.server == writable {
		w.stop(i)
	}
	n.armed, n.lease = 0, 0
	if n.busy.kind != committing {
		n.busy = pending{}
	}
}

// crash ends everything of node i but its disk; its agent starts again.
func (w *World) crash(i int) {
	n := &w.nodes[i]
	n.halfPromoted()
	w.stop(i)
	w.hold(i)
	n.busy, n.armed, n.lease, n.opened, n.inPlace, n.takes, n.unfitToRead = pending{}, 0, 0, 0, settled, 0, false
	n.seals, n.unfit, n.torn, n.late, n.sealEp = 0, 0, 0, 0, 0
	n.sealLog, n.sealCpy = [maxMembers]wal{}, [maxMembers]copyID{}
	n.noRewind = false
	n.feeds, n.feedTo = 0, 0
	n.withheld, n.known, n.fresh = 0, 0, true
}

// begins returns the mark of a promotion to that timeline that begins (marks.Promotion.Next).
func (m *Model) begins(n *node, tli uint16) begun {
	if m.unled(n) {
		return n.from
	}
	return begun{n.log, tli}
}

// unled reports whether the log goes on behind a promotion that did not come to lead (marks.Promotion.Unled).
func (m *Model) unled(n *node) bool {
	tli := m.logs.tli(n.log)
	return n.began != 0 && n.from.first <= tli && tli <= n.began
}

// halfPromoted leaves the mark of a promotion that ends before it has done anything.
func (n *node) halfPromoted() {
	if n.busy.kind == promoting && n.promised <= n.busy.at && n.data == present {
		n.began, n.from = n.busy.tli, n.busy.from
	}
}

// wipe loses the disk's data of node i, but for the marks.
func (w *World) wipe(i int) {
	w.crash(i)
	w.nodes[i].data, w.nodes[i].log = empty, 0
	w.nodes[i].quarantine, w.nodes[i].renew = false, false
}

// restore replaces the data of node i by those of an earlier moment, which are another copy.
func (m *Model) restore(w *World, i int, depth uint16) {
	w.crash(i)
	w.copies++
	w.nodes[i].log, w.nodes[i].copy = m.logs.at(w.nodes[i].log, depth), w.copies
}

// This file has the faults of a server that runs: it is unhealthy, its storage lost a write, a reserved setting was
// changed, or a member has two walsenders.

// addHealth is what a node's probes, its marks and the other nodes' reports say.
func (m *Model) addHealth(v *ag.View, w *World, i int, e *env) {
	n := &w.nodes[i]
	if n.ill != healthy {
		v.Local.Health = ag.Health{Level: ag.DefaultConditionLevel, Because: "the server does not answer", Restart: n.ill == curable}
	}
	if n.quarantine {
		v.Local.Quarantine = "an fsync failed"
		v.Local.Health = ag.Health{Level: ag.DefaultConditionLevel, Because: v.Local.Quarantine}
	}
	if n.renew {
		v.Local.Renew = "it was under quarantine"
	}
	if n.stood {
		v.Local.StoodDown = "lately"
	}
	v.Local.Late = n.slow && n.server == recovery
	if n.foreign && n.server == writable {
		v.Local.Foreign = "synchronous_standby_names"
	}
	if e.untrusted {
		v.Untrusted, v.Quorum = "the store has gone back", false
	}
	for j := range m.n {
		if o := &w.nodes[j]; j != i && (o.ill != healthy || o.quarantine || o.stood) {
			v.Unfit = append(v.Unfit, names[j])
		}
		if j != i && w.nodes[j].slow {
			v.Late = append(v.Late, names[j])
		}
	}
}

// distrust is a write that the storage of node i lost: its server ends, and its copy is put under quarantine. The
// flushed records exist, but no node relies on that.
func (w *World) distrust(i int) {
	n := &w.nodes[i]
	n.halfPromoted()
	w.stop(i)
	if n.busy.kind != committing {
		n.busy = pending{}
	}
	n.quarantine = !n.renew
}

// resume lets an operator end the quarantine of node i: the copy is made anew, or trusted as it is.
func (w *World) resume(i int, trust bool) {
	n := &w.nodes[i]
	n.renew = (n.quarantine || n.renew) && !trust
	n.quarantine = false
}

// twice gives member j a second walsender on primary i. A session is admitted only after the earlier walsender has
// gone, so the second one is a stranger's, and the answers that rest on it are held. With flawDoubled it is admitted,
// and they are not held.
func (w *World) twice(i, j int) { w.nodes[i].doubled |= one(j) }

// endTwice ends both.
func (w *World) endTwice(i int, members set) {
	n := &w.nodes[i]
	for _, id := range members.ids() {
		w.ends(index(id), i)
	}
	n.streams &^= members
	n.doubled &^= members
	n.proven, n.barrier = false, 0
}

// walsenders is for how many PostgreSQL counts member j.
func (m *Model) walsenders(n *node, j int) int {
	if m.flaw == flawDoubled && n.doubled.has(j) {
		return 2
	}
	return 1
}

// counts is for how many PostgreSQL counts member j towards a commit that ends there.
func (m *Model) counts(n *node, j int, depth uint16) int {
	if n.streams.has(j) && n.got[j] >= depth {
		return m.walsenders(n, j)
	}
	if m.flaw == flawStray && n.doubled.has(j) {
		return 1
	}
	return 0
}
