package underway

import (
	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/prospect"
	"github.com/coteriedb/coterie/internal/listener/replay"
)

// Loss is what the loss of its server does to a session that goes on at another one.
type Loss struct {
	Interrupted bool      // a request was cut by it
	Failed      bool      // it is in a transaction block that has failed
	Open        bool      // its transaction was open between two requests: the client is not told yet
	Doubtful    bool      // the request that was cut is a COMMIT whose outcome is asked for
	Fate        lone.Fate // of the requests outside a block
	Replays     bool      // its transaction is to be executed again
	Tried       bool      // that was begun
	Unreplayed  string    // why it is not
}

// facts returns what is known of the session for a judgement of its future. The caller holds the lock.
func (w *Work) facts() prospect.Session {
	k := &w.Known
	return prospect.Session{
		Continuity: w.Rules.Continues(), Streams: w.Replicates || w.Streams, Follows: k.Follows, Local: w.Local,
		Relayed: w.RelayedUnseen(), Texts: w.Tracker.Why(), Unchanged: k.Unchanged.Holds() || w.Lone.On() && k.Unchanged.HeldBefore(), Asked: k.Unchanged.WasAsked(), Told: k.Told != nil, Refusal: k.Refusal, Stays: k.Stays,
	}
}

// Unfit returns why the session would end with its server, whatever is under way; "": it would not. The caller holds
// the lock.
func (w *Work) Unfit() string {
	s := w.facts()
	return s.Unfit()
}

// WouldEnd returns why the session would end if its server were lost now; "": it goes on. cut is whether a request of
// it would be cut by that. The caller holds the lock.
func (w *Work) WouldEnd() (why string, cut bool) {
	s := w.facts()
	if why := s.Unfit(); why != "" {
		return why, false
	}
	u := prospect.UnderWay{
		Lone: w.loneFate(), Kept: w.Lone.On(), Batch: w.Midway || w.Requests.UnnamedWaits() || w.Unsynced.Load(), Owed: int(w.Owed.Load()),
	}
	if u.Owed == 1 {
		u.Cut, _ = w.Requests.Cut(!w.OnPrimary && !w.Promoted())
		u.Provable = w.Provable()
	}
	return u.WouldEnd()
}

// loneFate returns what would become of the requests under way outside a block if the server were lost now. The caller
// holds the lock.
func (w *Work) loneFate() lone.Fate {
	if !w.Lone.On() {
		return lone.Doubtful
	}
	return w.Lone.Fate(w.PreparedText)
}

// Interrupt notes in Loss what becomes of the requests and the transaction now that the server is lost. It reports
// false if the session ends by that. The caller holds the lock.
func (w *Work) Interrupt() bool {
	why, cut := w.WouldEnd()
	if why != "" {
		return false
	}
	l := &w.Loss
	if l.Fate = w.loneFate(); l.Fate != lone.Doubtful {
		l.Interrupted, l.Failed, l.Open, l.Doubtful = false, false, false, false
		return true
	}
	_, inBlock := w.Requests.Cut(false)
	status := w.Status.Load()
	l.Interrupted, l.Failed, l.Open = cut, status == 'E' || cut && inBlock, !cut && status == 'T'
	if l.Doubtful = cut && w.Provable(); l.Doubtful { // whatever became of it, it has ended the block
		l.Failed = false
	}
	return true
}

// PlanReplay decides whether the open transaction is to be executed again on the next server. st is what the lost one
// had told. why is why it fails instead; "": it does not, or none was open, or it may have been committed.
func (w *Work) PlanReplay(st *continuity.State) (why string) {
	l := &w.Loss
	inBlock := l.Open || l.Doubtful || l.Interrupted && l.Failed && w.Status.Load() != 'E'
	if !inBlock || w.Log == nil || !w.Rules.Replays() {
		return ""
	}
	why = w.Log.Refusal(st.Texts())
	if why == "" && l.Interrupted != (len(w.Log.Unanswered()) > 0) {
		why = replay.Outstanding
	}
	l.Replays = why == ""
	if l.Doubtful && why != "" {
		l.Unreplayed, why = why, ""
	}
	return why
}

// Guarded reports whether the requests that are executed again may write nothing (lone.Guard).
func (w *Work) Guarded() bool { return w.Loss.Fate == lone.Repeated && w.Lone.Guarded() }

// WhyUnknown returns why the outcome of the last request is not known, of a session that was not continued. The caller
// holds the lock.
func (w *Work) WhyUnknown() indoubt.Reason {
	c := w.Asking.Commit
	switch {
	case w.Unfit() != "":
		return indoubt.ReasonState
	case c != nil && !c.Answered():
		return indoubt.ReasonNotTold
	case c != nil:
		return indoubt.ReasonCut
	case w.Status.Load() == 'T':
		return indoubt.ReasonNotAsked
	}
	return indoubt.ReasonStatement
}
