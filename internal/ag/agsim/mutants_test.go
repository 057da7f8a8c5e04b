package agsim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// mutant is a deliberate mistake. Each must be found, which shows that the invariants and the histories can find such
// mistakes.
type mutant struct {
	name   string
	group  ag.Group
	bounds Bounds // for the explorer; none: the simulator finds it
	decide func(ag.View) ag.Plan
	// remembers makes a Decide with a memory, for the simulator only.
	remembers    func() func(ag.View) ag.Plan
	flaw         flaw
	first, seeds uint64 // the hunt begins with the seed that is known to find it, if that is a late one
	only         odds   // the faults that bring it to light, where those of most histories do not
	slow         bool   // found after hundreds of thousands of worlds: hunted by make mutants only
	because      string // part of the finding, to know that it is this mistake that was found
}

var (
	trio       = NewGroup(3, false, ag.RuleQuorum)
	strict     = strictly(trio)
	trioAll    = NewGroup(3, false, ag.RuleAll)
	pair       = NewGroup(2, true, ag.RuleQuorum)
	trioManual = manual(NewGroup(3, false, ag.RuleQuorum), 1)
	fiveManual = manual(NewGroup(5, false, ag.RuleQuorum), 1, 3)
	five       = NewGroup(5, false, ag.RuleQuorum)
	votes      = Bounds{Epochs: 2, Deaths: 2, States: 400_000}
)

var mutants = slices.Concat(decisionMutants, worldMutants, operatorMutants)

// decisionMutants are mistakes in the decisions, and in the steps that carry them out.
var decisionMutants = []mutant{
	{name: "the claim does not compare /state, and seals what it saw before", group: five, first: 977, seeds: 6000, because: "(S1)", only: odds{crash: 40, serverCrash: 40, cutPeer: 60, cutStore: 40, lostAnswer: 3000}, remembers: func() func(ag.View) ag.Plan {
		seen := map[ag.ReplicaID]ag.State{}
		return func(v ag.View) ag.Plan {
			if st, ok := seen[v.Self]; ok && v.Record.Epoch.Leader == v.Self && v.Record.Epoch.Phase == ag.PhaseSeal {
				v.Record.State, v.Sealed = st, ag.SealGrace
			}
			p := ag.Decide(v)
			if p.Rule == ag.RuleClaim {
				seen[v.Self] = v.Record.State
				p.Commit.Guard.State, p.Commit.Guard.Lead = -1, -1
			}
			return p
		}
	}},
	{name: "one seal fewer", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, decide: see(func(v *ag.View) {
		if v.Record.Epoch.Phase == ag.PhaseSeal {
			v.Record.State.K++
			v.Sealed = ag.SealGrace
		}
	})},
	{name: "a new primary waits for nobody", group: trio, seeds: 600, because: "REQUIRED", decide: edit(func(v ag.View, p *ag.Plan) {
		for i, a := range p.Actions {
			if a, ok := a.(ag.Promote); ok {
				a.Sync = ag.Sync{}
				p.Actions[i] = a
			}
		}
	})},
	{name: "the timeline id that PostgreSQL would choose", group: trio, seeds: 6000, only: odds{crash: 40, serverCrash: 40, cutPeer: 60, hang: 3000}, because: "used twice", decide: edit(func(v ag.View, p *ag.Plan) {
		if c := p.Commit; c != nil && (p.Rule == ag.RuleChoose || p.Rule == ag.RulePromoteAgain) {
			c.Epoch.TLI = c.Epoch.From.Timeline + 1
		}
	})},
	{name: "the highest timeline id forgotten by an epoch that outbids", group: trio, bounds: Bounds{Epochs: 3, States: 400_000}, decide: edit(func(v ag.View, p *ag.Plan) {
		if c := p.Commit; c != nil && p.Rule == ag.RuleOutbid {
			c.Epoch.MaxTLI = 2
		}
	})},
	{name: "PostgreSQL is told before the record", group: pair, bounds: Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 400_000}, decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if p.Rule == ag.RuleSync && p.Commit != nil && !p.Commit.State.Setting.Same(v.Local.Sync.Setting()) {
			s := p.Commit.State.Setting
			return ag.Plan{Rule: ag.RuleSync, Because: "told first", Open: p.Open, Actions: []ag.Action{ag.SetSync{Sync: ag.Sync{P: s.P, N: s.N}}}}
		}
		return p
	}, because: "lack"},
	{name: "a setting is not announced", group: pair, bounds: Bounds{Epochs: 1, Writes: 1, Faults: 1, Losses: 1, Born: true, States: 400_000}, decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if p.Rule == ag.RuleSync && p.Commit != nil && !p.Commit.State.Setting.Same(v.Record.State.Setting) && p.Commit.State.K == v.Record.State.K {
			v.Record.State.Setting = p.Commit.State.Setting
			return ag.Decide(v)
		}
		return p
	}},
	{name: "copy ids ignored when sealing and claiming", group: trio, seeds: 6000, only: odds{crash: 40, serverCrash: 40, wipe: 20, cutPeer: 60}, because: "(S1)", decide: see(func(v *ag.View) {
		if m, in := v.Record.State.InV(v.Self); in && v.Record.Epoch.Phase != ag.PhaseLead || v.Silence > time.Second {
			if v.Local.Data == ag.DataPresent && in {
				v.Local.Copy = m.Copy
			}
		}
		for i := range v.Seals {
			if m, in := v.Record.State.InV(v.Seals[i].Member); in {
				v.Seals[i].Copy, v.Sealed = m.Copy, ag.SealGrace
			}
		}
	})},
	{name: "whatever copy the chosen one has is promoted", group: trio, bounds: Bounds{Epochs: 2, Wipes: 1, States: 200_000}, decide: see(func(v *ag.View) {
		v.Record.Epoch.Copy = ""
	}), because: "S1"},
	{name: "retake after somebody else led", group: trio, bounds: Bounds{Epochs: 3, Writes: 1, States: 600_000}, seeds: 600, decide: see(func(v *ag.View) {
		if v.Record.Epoch.Phase == ag.PhaseSeal && v.Record.Epoch.Leader == v.Self {
			v.Record.State.Leader, v.Record.State.Copy = v.Self, v.Local.Copy
		}
	})},
	{name: "published without the barrier", group: trio, seeds: 600, decide: see(func(v *ag.View) {
		v.Local.Sync.Barrier = 0
	})},
	{name: "published without proof", group: trio, seeds: 2000, decide: see(func(v *ag.View) { v.Local.Sync.Proven = true })},
	{name: "dropped before the rest has flushed the barrier", group: trio, bounds: Bounds{Epochs: 1, Writes: 1, Faults: 1, States: 600_000}, decide: see(func(v *ag.View) {
		for i := range v.Streams {
			v.Streams[i].Flush = v.Local.Position.LSN
		}
	}), because: "lack"},
	{name: "a drop keeps k", group: pair, seeds: 600, decide: edit(func(v ag.View, p *ag.Plan) {
		if c := p.Commit; c != nil && p.Rule == ag.RuleSync && len(c.State.V) < len(v.Record.State.V) {
			c.State.K, c.State.V = v.Record.State.K, v.Record.State.V
		}
	})},
	{name: "the shortest log is chosen", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, decide: see(func(v *ag.View) {
		slices.SortFunc(v.Seals, func(x, y ag.SealReport) int { return x.Position.Compare(y.Position) })
		for i := range v.Seals {
			v.Seals[i].Position.LSN = v.Seals[0].Position.LSN
			if i > 0 {
				v.Seals[i].Promotable = false
			}
		}
	})},
	{name: "an automatic failover with k of 0", group: pair, seeds: 3000, because: "S1", decide: see(func(v *ag.View) {
		if v.Record.Epoch.Leader != v.Self || v.Record.Epoch.Phase == ag.PhaseSeal {
			v.Record.State.K = max(1, v.Record.State.K)
			if _, in := v.Record.State.InV(v.Self); !in && v.Local.Data == ag.DataPresent && v.Record.State.Leader != v.Self {
				v.Record.State.V = append(v.Record.State.V, ag.Member{ID: v.Self, Copy: v.Local.Copy})
			}
		}
	})},
	{name: "a copy the record counts is rewound", group: trio, seeds: 600, decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		_, in := v.Record.State.InV(v.Self)
		if p.Rule == ag.RuleAwaitDrop {
			return ag.Plan{Rule: ag.RuleRewind, Because: "at once", Actions: []ag.Action{ag.Rewind{Source: v.Record.Epoch.Leader}}}
		}
		if in && v.Record.Epoch.Phase != ag.PhaseLead && p.Rule == ag.RuleStandBy && v.Local.Source == "" {
			return ag.Plan{Rule: ag.RuleRewind, Because: "before anybody leads", Actions: []ag.Action{ag.Rewind{Source: v.Record.Epoch.Leader}}}
		}
		return p
	}},
	{name: "an interrupted promotion is tried again", group: trio, seeds: 1500, because: "PROMOTE", decide: see(func(v *ag.View) {
		if v.Record.Epoch.Phase == ag.PhasePromote && v.Record.Epoch.Leader == v.Self && v.Local.Server == ag.ServerRecovery {
			v.Local.Position.Timeline = min(v.Local.Position.Timeline, v.Record.Epoch.TLI-1)
		}
	})},
	{name: "an empty copy waits to be dropped, and its word is not taken", group: trio, first: 230, seeds: 6000, only: odds{crash: 40, wipe: 20, cutPeer: 60}, because: "healed", decide: func(v ag.View) ag.Plan {
		v.Streams = slices.Clone(v.Streams)
		for i := range v.Streams {
			v.Streams[i].Gone = false
		}
		p := ag.Decide(v)
		if _, in := v.Record.State.InV(v.Self); in && p.Rule == ag.RuleSeed {
			return ag.Plan{Rule: ag.RuleAwaitDrop, Because: "counted", Actions: []ag.Action{ag.Hold{}}}
		}
		return p
	}},
	{name: "silence of a moment is enough", group: trio, seeds: 600, because: "still writable", decide: see(func(v *ag.View) {
		if v.Silence > time.Second {
			v.Silence = time.Hour
		}
	})},
	{name: "a lease that ran out is not noticed", group: trio, seeds: 600, flaw: flawLongLease, decide: ag.Decide, because: "still writable"},
	{name: "a vote without waiting for the answer lease", group: trio, bounds: votes, because: "S3", decide: see(func(v *ag.View) { v.Voting.Quiet = time.Hour })},
	{name: "one vote fewer", group: trio, bounds: votes, because: "S3", decide: see(func(v *ag.View) {
		for _, id := range v.Record.Lead.Answer.Voters {
			if len(v.Record.Votes) == 1 && id != v.Record.Epoch.Leader && id != v.Record.Votes[0].Member {
				v.Record.Votes = append(v.Record.Votes, ag.Vote{Member: id, Epoch: v.Record.Epoch.Epoch, Incarnation: v.Record.Lead.Incarnation, Waited: time.Hour})
			}
		}
	})},
	{name: "the claim does not compare the votes", group: trio, bounds: Bounds{Epochs: 2, Deaths: 3, States: 600_000}, because: "S3", decide: edit(func(_ ag.View, p *ag.Plan) {
		if p.Rule == ag.RuleClaim {
			p.Commit.Votes = nil
		}
	})},
	{name: "a voter acknowledges on", group: trio, bounds: votes, because: "S3", flaw: flawKeepAcking, decide: ag.Decide},
	{name: "an agent that was started again acknowledges at once", group: trio, bounds: Bounds{Epochs: 2, Deaths: 2, Faults: 1, States: 600_000}, because: "S3", flaw: flawForget, decide: ag.Decide},
	{name: "heartbeats of an epoch that is over are acknowledged", group: trio, bounds: Bounds{Epochs: 2, Deaths: 2, Faults: 1, States: 600_000}, because: "S3", flaw: flawAckOld, decide: ag.Decide},
	{name: "a vote on its way outlives its removal", group: trio, bounds: Bounds{Epochs: 2, Deaths: 4, Losses: 1, States: 900_000}, because: "S3", flaw: flawLateVote, decide: ag.Decide},
	{name: "a primary answers whatever its voters say", group: trio, bounds: votes, because: "S3", flaw: flawNoAnswers, decide: ag.Decide},
	{name: "a seal leaves an older primary running", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, seeds: 600, flaw: flawNoFence, decide: ag.Decide},
	{name: "the seal of one member counts twice", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, decide: see(func(v *ag.View) {
		if n := len(v.Seals); n > 0 {
			v.Seals, v.Sealed = append(v.Seals, v.Seals[n-1]), ag.SealGrace
		}
	})},
	{name: "k is published one too high", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 400_000}, seeds: 600, decide: edit(func(v ag.View, p *ag.Plan) {
		if c := p.Commit; c != nil && p.Rule == ag.RuleSync && c.State.K < len(c.State.V) && c.State.K > 0 {
			c.State.K++
		}
	})},
	{name: "a member with another copy stays counted", group: trio, seeds: 600, decide: see(func(v *ag.View) {
		for i := range v.Streams {
			if m, in := v.Record.State.InV(v.Streams[i].Member); in {
				v.Streams[i].Copy = m.Copy
			}
		}
	})},
	{name: "a new leader keeps the old one's V and k", group: trio, seeds: 600, decide: edit(func(v ag.View, p *ag.Plan) {
		if p.Rule == ag.RuleLead {
			p.Commit.State.V, p.Commit.State.K = v.Record.State.V, v.Record.State.K
		}
	})},
	{name: "a promotion that makes progress is outbid", group: trio, seeds: 600, because: "healed", decide: see(func(v *ag.View) {
		if v.Record.Epoch.Phase != ag.PhaseLead && v.Record.Epoch.Leader != v.Self {
			v.Silence = time.Hour
		}
	})},
	{name: "a promotion that makes none is waited for", group: trio, seeds: 600, because: "healed", decide: see(func(v *ag.View) {
		if v.Record.Epoch.Phase != ag.PhaseLead {
			v.Silence = 0
		}
	})},
	{name: "a copy that has diverged serves readers", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 400_000}, because: "S7", flaw: flawReadable, decide: ag.Decide},
	{name: "a forced failover opens while the old leader may answer", group: strict, first: 162, seeds: 3000, only: odds{forced: 100, cutStore: 100}, because: "S3", decide: see(func(v *ag.View) {
		v.Since = time.Hour
	})},
	{name: "a promise is forgotten by a crash", slow: true, group: trio, bounds: Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 600_000}, flaw: flawForgetPromise, decide: staleFollow},
	{name: "a planned failover does not wait for its target", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, Ops: 1, States: 400_000}, seeds: 600, because: "S1", flaw: flawHandLag, decide: ag.Decide},
	{name: "silence is counted from before the first read", group: strict, seeds: 6000, only: odds{crash: 40, pause: 40, cutStore: 40}, because: "still writable", flaw: flawEarlyWatch, decide: ag.Decide},
	{name: "PostgreSQL is told to wait for one fewer", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, Faults: 1, Born: true, States: 400_000}, seeds: 600, decide: edit(func(_ ag.View, p *ag.Plan) {
		for i, a := range p.Actions {
			if a, ok := a.(ag.SetSync); ok && a.Sync.N > 0 {
				a.Sync.N--
				p.Actions[i] = a
			}
		}
	})},
	{name: "what a member flushed in another epoch counts", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, decide: see(func(v *ag.View) {
		for i := range v.Streams {
			v.Streams[i].Open, v.Streams[i].Flush = true, max(v.Streams[i].Flush, v.Local.Sync.Barrier)
		}
	})},
	{name: "an old stream stays open after the seal", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, flaw: flawSealOpen, decide: ag.Decide},
	{name: "WAL of an epoch before the promise is taken", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 600_000}, flaw: flawPromise, decide: staleFollow},
	{name: "a second walsender of a member is admitted and counted", group: trioAll, bounds: Bounds{Epochs: 1, Writes: 1, Ills: 1, States: 400_000}, because: "lack", flaw: flawDoubled, decide: see(func(v *ag.View) {
		v.Local.Doubled = nil
	})},
	{name: "a drop tells PostgreSQL before the record", group: trioAll, bounds: Bounds{Epochs: 2, Writes: 1, Faults: 1, States: 400_000}, because: "lack", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if p.Rule == ag.RuleSync && p.Commit != nil && len(p.Commit.State.V) < len(v.Record.State.V) && !p.Commit.State.Setting.Same(v.Local.Sync.Setting()) {
			s := p.Commit.State.Setting
			return ag.Plan{Rule: ag.RuleSync, Because: "told first", Open: p.Open, Actions: []ag.Action{ag.SetSync{Sync: ag.Sync{P: s.P, N: s.N}}}}
		}
		return p
	}},
	{name: "a flush one record short of the barrier counts", group: trio, first: 77, seeds: 2000, because: "lack", decide: see(func(v *ag.View) {
		v.Local.Sync.Barrier = max(1, v.Local.Sync.Barrier) - 1
	})},
	{name: "commits wait for fewer than REQUIRED when members are lost", group: trio, seeds: 600, because: "REQUIRED", decide: see(func(v *ag.View) {
		v.Group.Required = new(int)
	})},
	{name: "a keeper whose agent restarts in place minds no deadline", group: trio, seeds: 2000, only: odds{restart: 60, cutStore: 40, storeDown: 20}, because: "still writable", flaw: flawDetached, decide: ag.Decide},
	{name: "an agent that took a primary over believes its setting", group: trio, first: 36, seeds: 6000, only: odds{restart: 60, crash: 40, cutPeer: 60}, decide: see(func(v *ag.View) {
		if v.Local.Attached {
			v.Local.Attached, v.Local.Sync.Proven = false, true
		}
	})},
	{name: "a server that was started again within its epoch is opened at once", group: trioAll, bounds: Bounds{Epochs: 1, Writes: 1, Ops: 1, States: 400_000}, because: "S6", decide: see(func(v *ag.View) {
		v.Local.Restart = 0
	})},
	{name: "a hand-over whose answer was lost is given up", group: trio, first: 449, seeds: 6000, only: odds{planned: 80, lostAnswer: 3000, cutPeer: 60, cutStore: 40}, because: "(S", flaw: flawResume, decide: ag.Decide},
	{name: "a copy whose storage lost a write is promoted", group: trio, seeds: 2000, because: "F35", flaw: flawDistrusted, decide: see(func(v *ag.View) {
		v.Local.Quarantine, v.Local.Health = "", ag.Health{}
	})},
	{name: "a store that names another leader of an epoch is believed", group: trio, seeds: 400, only: odds{stories: 300}, because: "OneLeaderOfAnEpoch", flaw: flawSecond, decide: ag.Decide},
	{name: "a record older than one seen before is believed", group: five, seeds: 20000, flaw: flawBelieve, decide: ag.Decide},
	{name: "a member whose copy is to be dropped is waited for", group: trioAll, first: 2774, seeds: 6000, only: odds{distrust: 100, crash: 60, serverCrash: 60, planned: 80}, because: "healed", decide: see(func(v *ag.View) {
		for i := range v.Streams {
			v.Streams[i].Gone = false
		}
	})},
	{name: "what a lost copy promised is promised on", group: trio, bounds: Bounds{Epochs: 1, Writes: 1, Wipes: 1, Faults: 1, States: 600_000}, because: "lack", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if c := p.Commit; c != nil && p.Rule == ag.RuleSync && strings.Contains(p.Because, "says that") {
			c.State.K = min(v.Record.State.K, len(c.State.V))
		}
		return p
	}},
	{name: "members without a copy are waited for by no commit, REQUIRED or not", group: trio, seeds: 6000, only: odds{crash: 40, wipe: 60, cutPeer: 60}, because: "REQUIRED", decide: see(func(v *ag.View) {
		if slices.ContainsFunc(v.Streams, func(s ag.Stream) bool { return s.Bare }) {
			v.Group.Required = new(int)
		}
	})},
	{name: "a member that V counts is passed over as one that it does not, for it has no copy", group: trio, bounds: Bounds{Epochs: 1, Writes: 1, Wipes: 1, Faults: 1, States: 600_000}, because: "lack", decide: see(func(v *ag.View) {
		for i, s := range v.Streams {
			if _, in := v.Record.State.InV(s.Member); in && s.Bare {
				v.Streams[i].Gone = false
				v.Record.State.V = slices.DeleteFunc(v.Record.State.V, func(m ag.Member) bool { return m.ID == s.Member })
			}
		}
	})},
	{name: "an epoch starts with whoever was sealed", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, because: "lack", decide: edit(func(_ ag.View, p *ag.Plan) {
		if p.Rule == ag.RuleChoose {
			p.Commit.Epoch.K = len(p.Commit.Epoch.V)
		}
	})},
	{name: "an epoch starts with those who have what is on k of the sealed members", group: five, seeds: 6000, because: "lack", decide: edit(func(v ag.View, p *ag.Plan) {
		var at []ag.Position
		for _, s := range v.Seals {
			if m, in := v.Record.State.InV(s.Member); in && m.Copy == s.Copy {
				at = append(at, s.Position)
			}
		}
		if k := v.Record.State.K; p.Rule == ag.RuleChoose && k >= 1 && len(at) >= k {
			slices.SortFunc(at, func(x, y ag.Position) int { return y.Compare(x) })
			p.Commit.Epoch.K = 0
			for _, s := range v.Seals {
				in := slices.Contains(p.Commit.Epoch.V, ag.Member{ID: s.Member, Copy: s.Copy})
				if in && s.Position.Compare(at[k-1]) >= 0 {
					p.Commit.Epoch.K++
				}
			}
		}
	})},
	{name: "clients are let in before one has come of those whom an epoch starts with", group: trio, bounds: Bounds{Epochs: 2, States: 400_000}, because: "S6", decide: edit(func(v ag.View, p *ag.Plan) {
		p.Open = p.Open || v.Role() == ag.RolePrimary && v.Lease.Valid && v.Local.Armed == v.Record.Epoch.Epoch && v.Record.State.K >= 1
	})},
	{name: "a candidate leads before it has the whole tail", group: trioManual, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, because: "S1", decide: see(func(v *ag.View) {
		for _, s := range v.Seals {
			if v.Local.SourceEp == v.Record.Epoch.Epoch && s.Member == v.Local.Source {
				v.Local.Position = s.Position
			}
		}
	})},
	{name: "a longest log that may not be promoted is left aside without need", group: fiveManual, first: 260, seeds: 6000, because: "S1", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if len(v.Seals) != v.Record.State.SealsNeeded() || p.Rule != ag.RuleFetch {
			return p
		}
		v.Seals = slices.DeleteFunc(slices.Clone(v.Seals), func(s ag.SealReport) bool { return s.Member == "b" || s.Member == "d" })
		v.Record.State, v.Sealed = v.Record.State.Clone(), ag.SealGrace
		v.Record.State.K++
		return ag.Decide(v)
	}},
	{name: "a copy that only a person may promote is chosen", group: trioManual, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, because: "MANUAL", decide: func(v ag.View) ag.Plan {
		if v.Record.Epoch.Leader == v.Self && v.Record.Epoch.Phase == ag.PhaseSeal {
			v.Group.Replicas = slices.Clone(v.Group.Replicas)
			v.Group.Replicas[1].FailoverMode = ag.Automatic
		}
		return ag.Decide(v)
	}},
	{name: "a diverged copy is not rewound", group: trio, seeds: 600, because: "healed", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if p.Rule == ag.RuleRewind {
			return ag.Plan{Rule: ag.RuleFollow, Because: "all the same", Actions: []ag.Action{ag.Follow{Leader: v.Record.Epoch.Leader, Epoch: v.Record.Epoch.Epoch}}}
		}
		return p
	}},
}

// see makes Decide look at a falsified view; edit falsifies its plan.
func see(f func(*ag.View)) func(ag.View) ag.Plan {
	return func(v ag.View) ag.Plan {
		v.Record.State = v.Record.State.Clone()
		v.Streams, v.Seals = slices.Clone(v.Streams), slices.Clone(v.Seals)
		f(&v)
		return ag.Decide(v)
	}
}

func edit(f func(ag.View, *ag.Plan)) func(ag.View) ag.Plan {
	return func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		f(v, &p)
		return p
	}
}

// staleFollow follows the last leader again after the seal, as an agent does that acts on a record it read before.
func staleFollow(v ag.View) ag.Plan {
	p := ag.Decide(v)
	if s := v.Record.State; p.Rule == ag.RuleStandBy && v.Record.Epoch.Phase != ag.PhaseLead && v.Local.Source == "" && s.Leader != v.Self {
		p.Actions = []ag.Action{ag.Follow{Leader: s.Leader, Epoch: s.Epoch}}
	}
	return p
}

// TestMutants hunts every mistake. With -update it writes what was found, and how, into the documentation (make
// mutants).
func TestMutants(t *testing.T) {
	rows := make([]string, len(mutants))
	t.Run("each", func(t *testing.T) {
		for i, mu := range mutants {
			t.Run(strings.ReplaceAll(mu.name, "/", ""), func(t *testing.T) {
				t.Parallel()
				if mu.slow && os.Getenv("COTERIE_EXPLORE") == "" {
					t.Skip("takes long; make mutants hunts it")
				}
				begin := time.Now()
				found, how := mu.hunt()
				t.Logf("%s: %s in %v: %s", mu.name, how, time.Since(begin).Round(time.Millisecond), found)
				if found == "" {
					t.Error("nothing finds this mistake")
				}
				rows[i] = fmt.Sprintf("| %s | %s | %s |\n", mu.name, how, found)
			})
		}
	})
	if *update && !t.Failed() {
		writeMutants(t, mutantsHead, strings.Join(rows, ""))
	}
}

// writeMutants puts a table into the page, in place of the one below the same head.
func writeMutants(t *testing.T, head, table string) {
	t.Helper()
	page, err := os.ReadFile(mutantsPage)
	if err != nil {
		t.Fatal(err)
	}
	_, second, _ := strings.Cut(string(page), slipsHead)
	first, _, _ := strings.Cut(string(page), slipsHead)
	if head == slipsHead {
		second = table
	} else {
		first = mutantsHead + table
	}
	if err := os.WriteFile(mutantsPage, []byte(first+slipsHead+second), 0o644); err != nil {
		t.Fatal(err)
	}
}

const (
	mutantsPage = "../../../docs/mutants.md"
	mutantsHead = `# Deliberate mistakes, and what finds them

Every line is a mistake that was put into the decisions or into what carries them out, on purpose. Each must be found by the explorer, which
walks every interleaving of a small group, or by the simulator, which plays seeded histories; a mistake that nothing finds fails the tests.
This shows that a violation would be noticed, not that there is none. *make mutants* hunts them and writes this table.

| mistake | found by | as |
|---|---|---|
`
	slipsHead = `
What carries the decisions out has rules of its own, which no model of the decisions can break. Each of these mistakes was built into the
program, and the test that holds the rule run with it: it must fail.

| mistake | held by | with the mistake |
|---|---|---|
`
)

// TestMutantsAreDocumented fails when the table names other mistakes than there are.
func TestMutantsAreDocumented(t *testing.T) {
	page, err := os.ReadFile(mutantsPage)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, mu := range mutants {
		names = append(names, mu.name)
	}
	for _, s := range slips {
		names = append(names, s.name)
	}
	if n := strings.Count(string(page), "\n| ") - 2; n != len(names) || len(mutants) < 40 {
		t.Errorf("docs/mutants.md has %d lines, there are %d mistakes: make mutants writes it", n, len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(page), "| "+name+" |") {
			t.Errorf("docs/mutants.md lacks %q: make mutants writes it", name)
		}
	}
}

func (mu mutant) hunt() (found, how string) {
	if mu.bounds.Epochs > 0 {
		m := NewModel(mu.group)
		m.decide, m.flaw = mu.decide, mu.flaw
		r := m.Explore(mu.bounds)
		if strings.Contains(r.Flaw, mu.because) && r.Flaw != "" {
			return r.Flaw, fmt.Sprintf("explorer, %d events, %d worlds", r.Depth+1, r.States)
		}
	}
	for seed := mu.first; seed < mu.seeds; seed++ {
		m := NewModel(mu.group)
		m.decide, m.flaw, m.only = mu.decide, mu.flaw, mu.only
		if mu.remembers != nil {
			m.decide = mu.remembers()
		}
		if err := m.Run(seed, nil); err != nil && strings.Contains(err.Error(), mu.because) {
			return err.Error(), fmt.Sprintf("simulator, seed %d", seed)
		}
	}
	return "", "survived"
}

// strictly is the group with COMMIT_BARRIER = STRICT, which runs no answer lease: only the lease protects its reads.
func strictly(g ag.Group) ag.Group {
	g.Options.CommitBarrier = ag.BarrierStrict
	return g
}
