package agent

import (
	"errors"

	"github.com/coteriedb/coterie/internal/ag"
)

// walFile is the size of a WAL file unless initdb was told otherwise.
const walFile = 16 << 20

var (
	// errDisplaced ends an agent whose identity another one has taken over.
	errDisplaced = errors.New("another agent runs under this node's name since, from a copy of its node directory; this one ends: " +
		"keep one of the two, and join the other machine again under another name")
	errNotChecked = errors.New("this node has just started and has not yet checked that its copy is as far as it was")
)

// displaced reports whether another agent publishes under this node's name: a machine was cloned, or its snapshot restored, while this one
// still runs (F39). The newest wins: the older one sees what the newer wrote, and ends.
func (a *Agent) displaced() bool {
	s := a.snapshot.Load()
	if s == nil {
		return false
	}
	said := s.Statuses[a.cfg.Self].Incarnation
	if said == a.cfg.Incarnation {
		a.seenSelf = true
	}
	return a.seenSelf && said != "" && said != a.cfg.Incarnation
}

// leaveToOther makes way for the agent that runs under this node's name since.
func (a *Agent) leaveToOther() error {
	if s := a.snapshot.Load(); a.cfg.Keeper != nil {
		a.fence("another agent runs under this node's name", s.Record.Epoch.Epoch)
	}
	return errDisplaced
}

// checkPast looks once, before this node gives any seal, whether its copy is as far as it said it was when it was last heard of. A copy
// that is not was restored from an older state, node directory and all: it no longer holds what it acknowledged, so it becomes another
// copy, which nobody counts on (safety specification 1.4, F39).
func (a *Agent) checkPast(v ag.View) {
	switch {
	case a.checked.Load() || !v.Quorum || v.Local.Data == ag.DataForeign:
		return
	case v.Local.Data != ag.DataPresent: // nothing is there that could be counted
		a.checked.Store(true)
		return
	case v.Local.Position.LSN == 0:
		return
	}
	at := v.Local.Position
	st, ok := a.snapshot.Load().Statuses[v.Self]
	if !ok || st.Copy != v.Local.Copy || !behind(at, st.Position) {
		a.checked.Store(true)
		return
	}
	a.log.Error("this copy is older than it was: it was restored, and counts as another copy from now on",
		"at", at.String(), "was", st.Position.String(), "copy", v.Local.Copy)
	if err := a.newCopy("", v); err != nil {
		a.log.Error("the copy was not marked as another one; it seals nothing until it is", "err", err)
		return
	}
	a.checked.Store(true)
	a.Wake()
}

// behind reports whether a copy ends before where it was. A standby that waits for the rest of a record counts the file that ends with
// the beginning of it as whole.
func behind(at, was ag.Position) bool {
	if was.LSN%walFile == 0 && was.LSN-at.LSN < walFile {
		return false
	}
	return at.Timeline < was.Timeline || at.Timeline == was.Timeline && at.LSN < was.LSN
}
