package underway

import (
	"bytes"
	"slices"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/replay"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// ApplicationName is the setting by which a client names its program.
const ApplicationName = "application_name"

// maxLeaves is how many different statements are remembered of a session.
const maxLeaves = 4

// Follow follows a piece of a message of the client, without its header, for the state of the session. The caller holds
// the lock.
func (w *Work) Follow(typ byte, piece []byte, begun, whole bool) {
	follows := w.Known.Follows
	if (w.Local || follows) && (typ == 'Q' || typ == 'P' || typ == 'F') {
		fine := w.Tracker.Why() == ""
		w.Tracker.Message(typ, piece, begun, whole)
		if begun && typ != 'F' {
			w.noteStatement(typ, piece, fine)
		}
	}
	if follows {
		w.Known.Message(typ, piece, begun, whole)
	}
}

// noteStatement notes the keywords of a statement by which the session may not be moved. fine is whether it could be
// before. The caller holds the lock.
func (w *Work) noteStatement(typ byte, body []byte, fine bool) {
	if fine && w.Tracker.Why() != "" {
		w.by = stmt.TagOf(typ, body)
	}
	if tag := stmt.Leaves(typ, body); tag != "" && len(w.leaves) < maxLeaves && !slices.Contains(w.leaves, tag) {
		w.leaves = append(w.leaves, tag)
	}
}

// Reported follows a ParameterStatus. Its setting may have changed where no text of the client shows it.
func (w *Work) Reported(body []byte) {
	if !w.Local && !w.Known.Follows {
		return
	}
	name, value, _ := bytes.Cut(body, []byte{0})
	w.Lock()
	defer w.Unlock()
	w.Tracker.Reported(string(name))
	w.Known.Unchanged.Doubt()
	switch value := string(bytes.TrimRight(value, "\x00")); string(name) {
	case ApplicationName:
		w.Application = value
	case continuity.ReadOnly:
		w.ReadOnly = value == "on"
	}
}

// Knows notes the state of a session that continues another one.
func (w *Work) Knows(st *continuity.State) {
	if continuity.StatefulExtension(st.Extensions) == "" {
		w.Known.Unchanged.Asked()
		w.Known.Learn(st)
	}
}

// Outlook returns what would become of the session of that user on that replica, by what is known here.
func (w *Work) Outlook(id ag.ReplicaID, user string) continuity.Outlook {
	w.Lock()
	defer w.Unlock()
	o := continuity.Outlook{Replica: string(id), Application: w.Application, User: user, Failover: w.inFailover()}
	if why, _ := w.WouldEnd(); why == "" {
		o.Server.Fate = continuity.Kept
	} else {
		o.Server = continuity.Prospect{Fate: continuity.Ends, Why: why}
	}
	if o.Server.Fate == continuity.Kept {
		o.Transaction = w.transaction()
	}
	o.Commit = w.commit()
	if o.Node = o.Server; w.Local {
		o.Node = continuity.Prospect{Fate: continuity.Ends, Why: "it came through the listener of that node"}
	}
	k := &w.Known
	switch {
	case w.Tracker.Why() != "":
		o.Statement = w.by
	case k.Follows && !k.Unchanged.Holds():
		o.Statement = k.Unchanged.By()
	case k.Refusal != "":
		if i := slices.IndexFunc(w.leaves, func(tag string) bool { return continuity.MadeBy(k.Refusal, tag) }); i >= 0 {
			o.Statement = w.leaves[i]
		}
	}
	return o
}

// inFailover returns what would become of the session in a planned failover. The caller holds the lock.
func (w *Work) inFailover() continuity.Prospect {
	s := w.facts()
	return s.InFailover(w.Midway || !w.Idle(), w.Requests.UnnamedWaits())
}

// transaction returns what would become of the open transaction of a session that outlives its server: whether it would
// be executed again, or fail with 40001. The caller holds the lock.
func (w *Work) transaction() continuity.Prospect {
	why := replay.NotKept
	switch {
	case w.Status.Load() != 'T':
		return continuity.Prospect{}
	case !w.Rules.Replays():
		why = "CONTINUITY = SESSION"
	case w.Log != nil && w.Known.Told != nil:
		if why = w.Log.Refusal(w.Known.Told.Texts()); why == "" {
			return continuity.Prospect{Fate: continuity.Kept}
		}
	}
	return continuity.Prospect{Fate: continuity.Ends, Why: why}
}

// commit returns what would become of the request under way if its answer were lost with the server now, or of a COMMIT
// that were sent next. The caller holds the lock.
func (w *Work) commit() continuity.Prospect {
	unknown := func(why indoubt.Reason) continuity.Prospect {
		return continuity.Prospect{Fate: continuity.Unproved, Why: string(why)}
	}
	switch {
	case !w.OnPrimary || w.Replicates || w.Streams:
		return continuity.Prospect{}
	case w.Unfit() != "":
		return unknown(indoubt.ReasonState)
	case !w.Known.Told.Tells || w.Asking.Refused:
		return unknown(indoubt.ReasonNotAsked)
	case w.Requests.Verdict() == stmt.Unknown && w.loneFate() == lone.Doubtful && !w.Provable():
		return unknown(w.WhyUnknown())
	}
	return continuity.Prospect{Fate: continuity.Proved}
}

// The fates of a session whose transaction a planned failover cuts.
const (
	cutReplayed = "executed again"
	cutFails    = "its transaction fails with 40001"
	cutEnds     = "ends"
)

// Foresee enters what a planned failover would do with a session that is busy. relayed means that its client is at
// another node, which judges what it cuts.
func (w *Work) Foresee(m *ag.SessionMove, relayed bool) {
	w.Lock()
	defer w.Unlock()
	if p := w.inFailover(); p.Fate == continuity.Ends { // it would not move afterwards either
		m.Why = p.Why
		return
	}
	if m.Waits = true; relayed {
		return
	}
	if why, _ := w.WouldEnd(); why != "" {
		m.Cut = cutEnds + ": " + why
		return
	}
	switch p := w.transaction(); {
	case p.Fate == continuity.Ends:
		m.Cut = cutFails + ": " + p.Why
	case p.Fate == continuity.Kept, w.loneFate() == lone.Repeated:
		m.Cut = cutReplayed
	default: // it has failed already, or is being begun
		m.Cut = cutFails
	}
}
