package agsim

import "github.com/coteriedb/coterie/internal/ag"

// This file is what is wrong with a server that runs: it is ill, its storage lost a write, somebody changed a reserved setting, or a
// member has two walsenders.

// addHealth is what a node's probes, its marks and the other nodes' reports say.
func (m *Model) addHealth(v *ag.View, w *World, i int, e env) {
	n := &w.nodes[i]
	if n.ill != healthy {
		v.Local.Health = ag.Health{Level: 1, Because: "the server does not answer", Restart: n.ill == curable}
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
	}
}

// distrust is a write that the storage of node i lost: its server ends, and its copy is put under quarantine. What was flushed is
// there; nobody believes that it is.
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

// twice gives member j a second walsender on primary i. A session is admitted only after the walsender of the one before has gone, so
// this one is a stranger's, and the answers that rest on it are held (flawDoubled: it is not, and they are not).
func (w *World) twice(i, j int) { w.nodes[i].doubled |= one(j) }

// endTwice ends both.
func (w *World) endTwice(i int, members set) {
	n := &w.nodes[i]
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
