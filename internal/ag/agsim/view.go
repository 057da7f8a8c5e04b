package agsim

import (
	"math/bits"
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Model is a group and the rules of its world.
type Model struct {
	logs     *logs
	group    ag.Group
	groups   map[settings]ag.Group // the group with these settings
	n        int
	decide   func(ag.View) ag.Plan
	fired    map[ag.Rule]int
	flaw     flaw
	only     odds                     // if any is set: the faults of a run, in place of those it would draw
	votes    bool                     // the model has heartbeats and votes
	declared map[settings]declaration // by a holder with these settings
	timed    bool                     // silence is measured by clocks, not chosen by an adversary
	astray   bool                     // the store has gone back in time, and its account of V is no longer true
	clients  bool                     // the model has sessions
	seenBy   func(i int) env          // what node i knows of the record; nil: all of it
	led      map[uint16]bool          // where there are clocks: the epochs that entered LEAD
	altered  bool                     // the configuration changes while the group runs
	stories  bool                     // the store tells two: what rests on the record is not checked, but that no node believes both
	followed map[[2]uint16]int        // where it does: whom a node followed in an epoch
	loose    bool                     // the meaning of REQUIRED changes while the group runs: checked at rest only
}

// flaw is a deliberate mistake in the execution of plans. Mistakes in the decisions are made by wrapping Decide.
type flaw uint8

const (
	noFlaw            flaw = iota
	flawPromise            // WAL of an epoch older than the promise is taken
	flawNoFence            // a seal does not fence the old leader that gives it
	flawSealOpen           // a seal leaves older streams open
	flawLongLease          // a lease is counted from the arrival of its answer and does not end
	flawLateVote           // a vote that was on its way when it was withdrawn takes effect nevertheless
	flawKeepAcking         // a voter that has voted continues to acknowledge
	flawAckOld             // heartbeats of an epoch that is known to be over are acknowledged
	flawForget             // an agent that was started again acknowledges at once
	flawForgetPromise      // a promise is not on disk when it is given
	flawHandLag            // a planned failover does not wait for the target
	flawEarlyWatch         // an observer's stopwatch runs before its first read
	flawNoAnswers          // a primary passes answers on whatever its voters report
	flawDoubled            // a second walsender of a member is admitted, and counted
	flawDetached           // a keeper whose agent restarts in place ignores every deadline
	flawResume             // a hand-over whose answer was lost is given up like any other
	flawBelieve            // a record that is older than one seen before is believed
	flawSecond             // a record that names another leader of an epoch is believed
	flawReadable           // a copy that has diverged serves readers
	flawReadersStay        // readers of a copy that has diverged are not ended
	flawHidden             // a cancelled wait is seen only in what the session is sent, and it hides that (F1)
	flawEarlyGate          // readers outlive the promotion, through a gate that is open from PROMOTE on (F2)
	flawLateReader         // the role of a session is judged by its login (F2)
	flawToldNothing        // a reader that wrote after a promotion is told that nothing was under way (F2)
	flawTornCopy           // a copy whose files end before a record that began is taken for an older one (F4)
	flawTornSeal           // a seal names what was received, the beginning of a record included (F4)
	flawOldReport          // what a stream said counts after its end
	flawLateAck            // an answer lease is counted from the arrival of the acknowledgements
	flawSettled            // the word that an outgoing leader has ended counts in later epochs as well
	flawAlter              // clients may change reserved settings (F6)
	flawStray              // a walsender in the name of a member that has none counts (F7)
	flawDistrusted         // a candidate is not told that a copy is under quarantine
	flawRemoval            // who leads is looked at when the removal of a member begins, and not when it ends
	flawCounted            // a member is removed that the record counts
	flawStale              // the record is written by a configuration that is not the present one
	flawUnsure             // a declaration whose outcome is unknown is not obeyed
	flawShort              // a new profile's silence is declared before the leases of the old one have run out
	flawHastyReplace       // a member that is replaced is taken out while the record counts it
	flawHeirVotes          // a vote is written by a configuration that is not the present one
	flawHeirAcks           // the successor of a member acknowledges at once, whatever that one has voted
)

// NewModel returns a model of that group, whose replicas must be called a, b, c, ... in order.
func NewModel(g ag.Group) *Model {
	return &Model{
		logs: newLogs(), group: g, groups: map[settings]ag.Group{}, declared: map[settings]declaration{}, n: len(g.Replicas), decide: decideAndCheck,
		fired: map[ag.Rule]int{},
	}
}

// NewGroup returns a group of synchronous replicas that fail over automatically, the last one a witness if that is
// wanted.
func NewGroup(replicas int, witness bool, rule ag.CommitRule) ag.Group {
	g := ag.Group{CommitRule: rule, SessionTimeout: 10 * time.Second, Profile: "default"}
	for i := range replicas {
		g.Replicas = append(g.Replicas, ag.Replica{ID: names[i], AvailabilityMode: ag.SynchronousCommit, FailoverMode: ag.Automatic, Voter: true})
	}
	if witness {
		g.Replicas = append(g.Replicas, ag.Replica{ID: names[replicas], AvailabilityMode: ag.ConfigurationOnly, Voter: true})
	}
	return g
}

// steady is a group in which a has led the first epoch for a while and every replica streams.
func (m *Model) steady() World {
	w := m.born()
	w.epoch.phase = lead
	w.state.epoch = 1
	a := &w.nodes[0]
	a.server, a.armed, a.lease, a.leading, a.opened, a.endOfRec, a.proven, a.barrier = writable, 1, 1, 1, 1, 2, true, 2
	log := m.logs.append(a.log, 2, m.writer(0, 1))
	w.state.basis, a.log, w.used = log, log, 1<<1|1<<2
	n, _ := m.group.CommitTarget(m.withData() - 1)
	for i := range m.n {
		if !m.group.Replicas[i].HasData() {
			continue
		}
		x := &w.nodes[i]
		x.log, x.server, x.promised = log, max(x.server, recovery), 1
		if i == 0 {
			continue
		}
		x.source, x.sourceEp = 1, 1
		a.streams |= one(i)
		a.got[i], a.gotCopy[i] = m.logs.depth(log), x.copy
		w.state.v[i] = x.copy
	}
	w.state.k = uint8(n)
	if m.votes {
		w.declared = m.declares(w.settings)
		a.answerEp, a.answer, a.obeysEp, a.obeys = 1, w.declared.voters&^one(0), 1, w.declared
	}
	a.sync = setting{a.streams, uint8(n)}
	w.acked, w.state.set = log, a.sync
	return w
}

// born is a group that was just founded: a is to be promoted, the others are copies of it.
func (m *Model) born() World {
	w := World{epoch: epochRec{epoch: 1, phase: promote, leader: 1, tli: 2, maxTLI: 2}, used: 1 << 1}
	log := m.logs.append(0, 1, 0)
	w.state.leader = 1
	w.state.basis = log
	for i := range m.n {
		w.nodes[i].up = true
		if m.group.Replicas[i].HasData() {
			w.copies++
			w.nodes[i].data, w.nodes[i].log, w.nodes[i].copy = present, log, w.copies
		}
	}
	w.state.copy = w.nodes[0].copy
	return w
}

func (m *Model) withData() (n int) {
	for _, r := range m.group.Replicas {
		if r.HasData() {
			n++
		}
	}
	return n
}

// writer tells apart what different promotions wrote, even on a timeline id allotted twice.
func (m *Model) writer(i int, epoch uint16) uint32 { return uint32(epoch)<<8 | uint32(i+1) }

// env is the information from a node's clocks and network: in the explorer an adversary's choice, in the simulator
// true.
type env struct {
	noQuorum bool
	epoch    epochRec // the record as last read
	state    stateRec
	released bool
	settings settings // the configuration as last read
	silence  time.Duration
	since    time.Duration // since the node first saw the present epoch
	sealed   time.Duration
	reach    set
	silent   [maxMembers]time.Duration // streams
	refused  set
	votes    [maxMembers]uint16
	against  [maxMembers]uint8
	waited   [maxMembers]uint8
	declared declaration
	observer time.Duration
	evidence bool
	unheard  bool // evidence by silence, rightly or not

	restarting  bool
	settled     bool
	superseded  time.Duration
	incarnation uint8
	untrusted   bool // the record that was read last is older than one seen before
	quiet       time.Duration
}

// patience is View.Patience in package ag.
func (e env) patience() time.Duration {
	if e.observer > 0 {
		return e.observer
	}
	return profiles[e.settings.profile].Observer
}

// view returns the view of node i.
func (m *Model) view(w *World, i int, e env) ag.View {
	n := &w.nodes[i]
	v := ag.View{
		Self: names[i], Group: m.groupWith(e.settings), Profile: profiles[e.settings.profile], Quorum: !e.noQuorum,
		Silence: e.silence, Since: e.since, Superseded: e.superseded, Lease: ag.Lease{Epoch: ag.Epoch(n.lease), Valid: n.lease != 0}, Reach: e.reach.ids(),
	}
	m.record(&v.Record, &e)
	v.Local = ag.Local{
		Data: dataStates[n.data], Server: serverStates[n.server], Copy: n.copy.id(), Position: m.logs.position(n.log),
		Promised: ag.Epoch(n.promised), Began: ag.Timeline(n.began), Armed: ag.Epoch(n.armed), SourceEp: ag.Epoch(n.sourceEp), Refused: n.refused, NoRewind: n.noRewind,
		Opened: ag.Epoch(n.opened), Attached: n.attached, Restart: ag.LSN(n.restart), Doubled: n.doubled.ids(),
	}
	m.addHealth(&v, w, i, &e)
	if m.votes {
		v.Voting = ag.Voting{Withheld: ag.Epoch(n.withheld), Fresh: n.fresh, Quiet: e.quiet}
		if e.evidence || e.unheard {
			v.Voting.Evidence = ag.Evidence{Epoch: v.Record.Epoch.Epoch, Incarnation: v.Record.Lead.Incarnation}
		}
		if !e.evidence && e.unheard {
			v.Voting.Evidence.Silent = "it seems so"
		}
	}
	if n.data != present {
		v.Local.Position = ag.Position{}
	}
	if n.source != 0 {
		v.Local.Source = names[n.source-1]
	}
	if n.busy.kind != idle {
		v.Busy = kinds[n.busy.kind]
	}
	if w.op != "" {
		v.Ready = "op" // a preparation changes nothing, so that it may count as done
		v.Op = ag.Op{ID: "op", Kind: w.op, To: names[w.opTo-1], Epoch: ag.Epoch(w.opEpoch), Now: w.opNow}
	}
	if n.server == writable {
		v.Local.Sync = ag.Sync{P: n.sync.p.ids(), N: int(n.sync.n), Proven: n.proven, Barrier: ag.LSN(n.barrier)}
		v.Local.EndOfRec = ag.LSN(n.endOfRec)
		if e.epoch.phase == promote {
			v.Local.History = m.logs.timelines(m.logs.at(n.log, max(n.endOfRec, 1)))
		}
	}
	if n.sealEp == e.epoch.epoch && n.seals != 0 {
		v.Seals = make([]ag.SealReport, 0, n.seals.size())
		for j := range m.n {
			if n.seals.has(j) {
				r := ag.SealReport{
					Member: names[j], Copy: n.sealCpy[j].id(), Epoch: ag.Epoch(n.sealEp),
					Position: m.logs.position(n.sealLog[j]), Promotable: !n.unfit.has(j), Late: n.late.has(j),
				}
				if n.torn.has(j) && m.flaw == flawTornSeal {
					r.Position.LSN++
				}
				v.Seals = append(v.Seals, r)
			}
		}
		if v.SealsSuffice() {
			v.Sealed = e.sealed
		}
	}
	if n.leading != 0 {
		m.addStreams(&v, w, n, &e)
	}
	return v
}

func (m *Model) addStreams(v *ag.View, w *World, n *node, e *env) {
	v.Streams = make([]ag.Stream, 0, m.n)
	for j := range m.n {
		if names[j] == v.Self || !m.group.Replicas[j].HasData() {
			continue
		}
		open := n.streams.has(j)
		v.Streams = append(v.Streams, ag.Stream{
			Member: names[j], Copy: n.gotCopy[j].id(), Open: open, Flush: ag.LSN(n.got[j]),
			Close: open && n.got[j] != 0, Silent: e.silent[j], Refused: !open && e.refused.has(j),
			Gone: !open && e.state.v[j] != 0 && e.state.v[j] == w.nodes[j].gone, Bare: !open && e.epoch.epoch == w.nodes[j].bare,
		})
	}
}

// incarnation names the agents that led one epoch, one after the other. Only an agent that is restarted in place
// continues to lead.
func incarnation(n uint8) string { return incarnations[min(int(n), len(incarnations)-1)] }

var incarnations = [...]string{"first", "second", "third", "later"}

// members returns the entries of V, or none.
func members(v [maxMembers]copyID) []ag.Member {
	ms := make([]ag.Member, 0, count(v))
	for j, c := range v {
		if c != 0 {
			ms = append(ms, ag.Member{ID: names[j], Copy: c.id()})
		}
	}
	return ms
}

// record fills in the record as the node read it. The revisions are all 1: changes of a key since the view are in the
// pending plan.
func (m *Model) record(r *ag.Record, e *env) {
	r.Revs = ag.Revisions{Epoch: 1, State: 1, Lead: 1}
	r.Epoch = ag.EpochRecord{
		Epoch: ag.Epoch(e.epoch.epoch), Phase: phases[e.epoch.phase], TLI: ag.Timeline(e.epoch.tli),
		MaxTLI: ag.Timeline(e.epoch.maxTLI), Forced: e.epoch.forced, Copy: e.epoch.copy.id(), Leader: names[e.epoch.leader-1], Reason: "claimed",
		From: ag.Position{Timeline: ag.Timeline(e.epoch.fromTLI), LSN: ag.LSN(e.epoch.fromLSN)}, V: members(e.epoch.v), K: int(e.epoch.k),
	}
	for t := e.epoch.unled; t != 0; t &= t - 1 {
		r.Epoch.Unled = append(r.Epoch.Unled, ag.Timeline(bits.TrailingZeros64(t)))
	}
	if o := e.epoch.outgoing; o != 0 {
		r.Epoch.Outgoing = ag.Outgoing{Leader: names[o-1], Epoch: r.Epoch.Epoch - 1, Wait: time.Duration(e.epoch.ticks) * tick, Now: e.epoch.now}
		r.Epoch.Outgoing.Answer = e.epoch.outAnswer.answer()
	}
	r.State = ag.State{
		Epoch: ag.Epoch(e.state.epoch), Copy: e.state.copy.id(), K: int(e.state.k), V: members(e.state.v),
		Timelines: m.logs.timelines(e.state.basis), Seq: 1, Leader: names[e.state.leader-1],
		Setting: ag.Setting{P: e.state.set.p.ids(), N: int(e.state.set.n)},
	}
	if e.state.former != 0 {
		r.State.Former = ag.Member{ID: names[e.state.former-1], Copy: e.state.fcopy.id()}
	}
	r.Lead = ag.Lead{
		Epoch: r.Epoch.Epoch, Holder: r.Epoch.Leader, Incarnation: incarnation(e.incarnation), Released: e.released, Restarting: e.restarting, Settled: e.settled,
		Observer: e.observer,
	}
	if m.votes {
		r.Lead.Answer = e.declared.answer()
		for j, epoch := range e.votes {
			if epoch != 0 {
				r.Votes = append(r.Votes, ag.Vote{Member: names[j], Epoch: ag.Epoch(epoch), Incarnation: incarnation(e.against[j]), Waited: time.Duration(e.waited[j]) * tick, Rev: 1})
			}
		}
	}
}

// declaration is the answer lease that the holder of an epoch declares in /lead; without voters there is none.
type declaration struct {
	voters set
	lease  uint8 // in ticks
}

func declarationOf(a ag.Answer) declaration {
	return declaration{setOf(a.Voters), uint8(ticks(a.Lease))}
}

func (d declaration) answer() ag.Answer {
	if d.voters == 0 {
		return ag.Answer{}
	}
	return ag.Answer{Voters: d.voters.ids(), Lease: time.Duration(d.lease) * tick}
}

// declares returns what a holder with these settings declares.
func (m *Model) declares(c settings) declaration {
	d, ok := m.declared[c]
	if !ok {
		d = declarationOf(m.groupWith(c).Answers(profiles[c.profile]))
		m.declared[c] = d
	}
	return d
}

// declare is a renewal of /lead by node i, whose answers obey from now on what it declares. It returns what /lead
// declares then.
func (m *Model) declare(w *World, i int, c settings) declaration {
	if !m.votes {
		return w.declared
	}
	n, d := &w.nodes[i], m.declares(c)
	if w.declared != d && w.declared != (declaration{}) {
		w.renews(i, w.restarting)
	}
	w.declared, n.obeys, n.doubts, n.obeysEp = d, d, declaration{}, n.lease
	return d
}

// The next part is the configuration, which operators change at any moment, in the middle of a failover as well. A node
// acts on the configuration that it has read last.

// settings is how the configuration differs from the group that the model began with.
type settings struct {
	suspended set
	async     set   // members with asynchronous commit
	manual    set   // members whose failover mode is the other one
	required  uint8 // REQUIRED and one; 0: by the table
	all       bool  // the other commit rule
	timeout   bool  // a SESSION_TIMEOUT of three seconds

	maintenance bool // of the group
	maintained  set  // members under maintenance

	removed set   // members that were taken out of the group
	votes   set   // members whose vote is the other one
	strict  bool  // the other FAILURE_DETECTION
	profile uint8 // of profiles

	successors uint8 // how many have joined: a configuration with another one is not the same, even if it says the same
}

// shortTimeout is the other SESSION_TIMEOUT.
const shortTimeout = 3 * time.Second

// profiles are the lease profiles, the first being that of every group at its beginning.
var profiles = [...]ag.Profile{ag.Profiles["default"], ag.Profiles["fast"], ag.Profiles["wan"]}

// groupWith returns the group with these settings. The result is shared.
func (m *Model) groupWith(c settings) ag.Group {
	if c == (settings{}) {
		return m.group
	}
	g, ok := m.groups[c]
	if !ok {
		g = m.group
		g.Replicas = slices.Clone(g.Replicas)
		for i := range g.Replicas {
			c.configure(&g.Replicas[i], i)
		}
		g.Replicas = slices.DeleteFunc(g.Replicas, func(r ag.Replica) bool { return c.removed.has(index(r.ID)) })
		if c.required > 0 {
			n := int(c.required) - 1
			g.Required = &n
		}
		if c.all {
			g.CommitRule = map[ag.CommitRule]ag.CommitRule{ag.RuleAll: ag.RuleQuorum, ag.RuleQuorum: ag.RuleAll}[g.CommitRule]
		}
		if c.strict {
			g.Options.FailureDetection = ag.DetectStrict
		}
		if c.maintenance {
			g.Maintenance = &ag.Maintenance{}
		}
		if c.timeout {
			g.SessionTimeout = shortTimeout
		}
		m.groups[c] = g
	}
	return g
}

// configure changes the replica of member i.
func (c settings) configure(r *ag.Replica, i int) {
	r.Suspended = c.suspended.has(i)
	if c.maintained.has(i) && r.HasData() {
		r.Options.Maintenance = &ag.Maintenance{}
	}
	if c.async.has(i) && r.HasData() {
		r.AvailabilityMode, r.FailoverMode = ag.AsynchronousCommit, ag.Manual
	}
	if c.manual.has(i) && r.AvailabilityMode == ag.SynchronousCommit {
		r.FailoverMode = map[ag.FailoverMode]ag.FailoverMode{ag.Manual: ag.Automatic, ag.Automatic: ag.Manual}[r.FailoverMode]
	}
	r.Voter = r.Voter != c.votes.has(i)
}

// membership is what is left of the settings where a person has undone all that can be undone.
func (c settings) membership() settings {
	return settings{removed: c.removed, votes: c.votes, profile: c.profile, successors: c.successors}
}
