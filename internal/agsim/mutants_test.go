package agsim

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// mutant is a deliberate mistake. Each must be found, which shows that the invariants and the histories can find such mistakes.
type mutant struct {
	name   string
	group  ag.Group
	bounds Bounds // for the explorer; none: the simulator finds it
	decide func(ag.View) ag.Plan
	// remembers makes a Decide with a memory, for the simulator only.
	remembers    func() func(ag.View) ag.Plan
	flaw         flaw
	first, seeds uint64
	because      string // part of the finding, to know that it is this mistake that was found
}

var (
	trio    = NewGroup(3, false, ag.RuleQuorum)
	trioAll = NewGroup(3, false, ag.RuleAll)
	pair    = NewGroup(2, true, ag.RuleQuorum)
	five    = NewGroup(5, false, ag.RuleQuorum)
)

var mutants = []mutant{
	{name: "the claim does not compare /state, and seals what it saw before", group: five, seeds: 6000, remembers: func() func(ag.View) ag.Plan {
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
	{name: "the timeline id that PostgreSQL would choose", group: trio, seeds: 600, because: "used twice", decide: edit(func(v ag.View, p *ag.Plan) {
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
	{name: "copy ids ignored when sealing and claiming", group: trio, seeds: 3000, decide: see(func(v *ag.View) {
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
	{name: "an empty copy waits to be dropped", group: trio, first: 2490, seeds: 6000, because: "healed", decide: func(v ag.View) ag.Plan {
		p := ag.Decide(v)
		if _, in := v.Record.State.InV(v.Self); in && p.Rule == ag.RuleSeed {
			return ag.Plan{Rule: ag.RuleAwaitDrop, Because: "counted", Actions: []ag.Action{ag.Hold{}}}
		}
		return p
	}},
	{name: "silence of a moment is enough", group: trio, seeds: 600, because: "S3", decide: see(func(v *ag.View) {
		if v.Silence > time.Second {
			v.Silence = time.Hour
		}
	})},
	{name: "a lease that ran out is not noticed", group: trio, seeds: 600, flaw: flawLongLease, decide: ag.Decide, because: "S3"},
	{name: "an old stream stays open after the seal", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 400_000}, flaw: flawSealOpen, decide: ag.Decide},
	{name: "WAL of an epoch before the promise is taken", group: trio, bounds: Bounds{Epochs: 2, Writes: 1, States: 600_000}, flaw: flawPromise, decide: staleFollow},
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

func TestMutants(t *testing.T) {
	for _, mu := range mutants {
		t.Run(mu.name, func(t *testing.T) {
			found, how := mu.hunt()
			t.Logf("%s: %s", how, found)
			if found == "" {
				t.Error("nothing finds this mistake")
			}
		})
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
		m.decide, m.flaw = mu.decide, mu.flaw
		if mu.remembers != nil {
			m.decide = mu.remembers()
		}
		if err := m.Run(seed, nil); err != nil && strings.Contains(err.Error(), mu.because) {
			return err.Error(), fmt.Sprintf("simulator, seed %d", seed)
		}
	}
	return "", "survived"
}
