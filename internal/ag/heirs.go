package ag

import "slices"

// This file is what a new epoch starts with: whom its first commits wait for, and who may lead should its primary die before any of them
// has come (reliability notes F65).
//
// The members that were sealed have promised the epoch and stand still until its leader feeds them. So the candidate knows which of them have
// everything that was ever acknowledged, and (V, k) of the new epoch begins with those: what earlier epochs acknowledged is on them already,
// and what this one acknowledges is on as many as the setting asks for that is in force before the promotion.

// heirs returns the sealed members, beside the chosen one, whose log is a beginning of its log, and how many of them have everything that was
// acknowledged so far. Who went on elsewhere is to be rewound, and V would keep it from that.
func (v View) heirs(chosen SealReport) (ms []Member, k int) {
	in, all := v.sealed(), v.acknowledged(chosen.Position)
	eligible := v.Group.syncSecondaries(chosen.Member)
	for _, s := range in.all {
		if !slices.Contains(eligible, s.Member) || !v.Record.State.begins(s.Position, chosen.Position) {
			continue
		}
		ms = append(ms, Member{s.Member, s.Copy})
		if s.Position.Compare(all) >= 0 {
			k++
		}
	}
	return ms, k
}

// Heirs returns what the epoch of a planned failover starts with, once the server of this node has stopped: this node, which has everything,
// and the members of V that streamed from it, all but the target, whose logs are beginnings of its log.
func (v View) Heirs(to ReplicaID) (ms []Member, k int) {
	st, eligible := v.Record.State, v.Group.syncSecondaries(to)
	if !slices.Contains(eligible, v.Self) {
		return nil, 0
	}
	ms = append(ms, Member{v.Self, st.Copy})
	for _, m := range st.V {
		if s, ok := v.stream(m.ID); ok && s.Open && s.Copy == m.Copy && slices.Contains(eligible, m.ID) {
			ms = append(ms, m)
		}
	}
	return ms, 1
}

// acknowledged returns a position that no acknowledged commit lies behind. Each is on k of V: if those that are not sealed have it, on so
// many fewer of those that are. Where that leaves none, it is only known to be in the chosen log.
func (v View) acknowledged(chosen Position) Position {
	st, in := v.Record.State, v.sealed()
	n := st.K - (len(st.V) - len(in.ofV))
	if n < 1 || n > len(in.ofV) { // the latter in no record that is in order
		return chosen
	}
	slices.SortFunc(in.ofV, func(s, t SealReport) int { return t.Position.Compare(s.Position) })
	return in.ofV[n-1].Position
}

// inherited returns the (V, k) that the epoch starts with: k members have what was acknowledged before, and what is acknowledged under the
// setting in force is on as many of V as it asks for, but for those outside.
func (v View) inherited() ([]Member, int) {
	e, set := v.Record.Epoch, v.Local.Sync
	st := State{V: slices.Clone(e.V)}
	for k := e.K; k >= 1; k-- {
		if st.K = k; st.Holds(set) {
			return st.V, k
		}
	}
	return []Member{}, 0
}

// FirstSync is the setting a new primary starts with, in force before promotion: it is protected from its first commit
// (safety specification 2.3). It waits for the heirs, if they are enough.
func (v View) FirstSync() Sync {
	eligible := v.Group.syncSecondaries(v.Self)
	_, required := v.Group.CommitTarget(len(eligible))
	var heirs, p []ReplicaID
	for _, id := range eligible {
		if slices.ContainsFunc(v.Record.Epoch.V, func(m Member) bool { return m.ID == id }) {
			heirs = append(heirs, id)
		}
		if v.reaches(id) || slices.ContainsFunc(v.Seals, func(s SealReport) bool { return s.Member == id }) {
			p = append(p, id)
		}
	}
	switch {
	case len(heirs) >= max(1, required):
		p = heirs
	case len(p) < required:
		p = eligible
	}
	slices.Sort(p)
	return Sync{P: p, N: min(max(1, required), len(p))}
}
