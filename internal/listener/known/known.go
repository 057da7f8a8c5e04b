package known

import (
	"time"

	"github.com/coteriedb/coterie/internal/listener/continuity"
	"github.com/coteriedb/coterie/internal/listener/indoubt"
	"github.com/coteriedb/coterie/internal/listener/stmt"
)

// How often sessions are asked for their state. A question costs the server some milliseconds of a processor, so a
// session that ends soon is not asked, and one that changes its state again and again ever more seldom.
const (
	Tick     = time.Second // a session is not asked before it is that old
	PauseMin = 10 * time.Second
	pauseMax = 5 * time.Minute
)

// A session of the local server is asked for its state once it has been idle for Idle. At most maxFollowed texts are
// looked at then: a session that sends more is busy, and is asked again once it is idle. So following costs next to
// nothing. After as many requests the kernel may relay it.
const (
	Idle        = 5 * time.Second
	maxFollowed = 1000
)

// Times are how often sessions are asked.
type Times struct{ Tick, Pause, Idle time.Duration }

// State is what is known of one session. One goroutine at a time may use it.
type State struct {
	Follows   bool // the session may outlive its server; does not change
	Unchanged stmt.Unchanged
	Told      *continuity.State // the last answer; nil: the session cannot be moved, was not asked, or is being asked
	Refusal   string            // why it cannot
	Stays     string            // why it cannot in a planned failover, which knows the libraries of its process
	Commits   indoubt.Names     // its prepared statements that are a COMMIT, if Told is known
	Next      time.Time         // it is not asked again before
	Pause     time.Duration     // between the last questions

	// Of the idleness of a session of the local server:
	bytes uint64    // that it had carried when they were counted last
	since time.Time // it has carried none since
	texts int       // that were looked at since its state was read

	requests int // since then
}

// Followed reports whether the state is known, and the session not so busy that following it would cost much. The
// kernel, which follows nothing, does not relay such a session.
func (k *State) Followed() bool {
	return k.Told != nil && k.requests <= maxFollowed && k.Unchanged.Holds()
}

// Message follows a piece of a message of the client.
func (k *State) Message(typ byte, piece []byte, begun, whole bool) {
	if begun && (typ == 'Q' || typ == 'B') {
		k.requests++
	}
	if (typ == 'Q' || typ == 'P') && k.Unchanged.Brief && k.Unchanged.Holds() {
		if k.texts++; k.texts > maxFollowed {
			k.Unchanged.Forget()
		}
	}
	k.Unchanged.Message(typ, piece, begun, whole)
}

// Unknown reports whether the state is not known and might be. A session that began at since is not asked before it is
// as old as a tick.
func (k *State) Unknown(since time.Time, tick time.Duration) bool {
	if k.Next.IsZero() {
		k.Next = since.Add(tick)
	}
	return !k.Unchanged.Holds() || k.Told == nil && k.Refusal == ""
}

// IdleUntil returns when a session of the local server that has carried so many bytes will have been idle for so long.
// Once it has been, the requests before that are not counted any more.
func (k *State) IdleUntil(now time.Time, carried uint64, idle time.Duration) time.Time {
	if carried != k.bytes || k.since.IsZero() {
		k.bytes, k.since = carried, now
	}
	at := k.since.Add(idle)
	if !at.After(now) {
		k.texts, k.requests = 0, 0
	}
	return at
}

// Asked notes that the server is asked now.
func (k *State) Asked() {
	k.Told, k.Refusal, k.Stays, k.texts, k.requests = nil, "", "", 0, 0
	k.Unchanged.Asked()
}

// Over notes that a question is over at that time, and whether it was answered. Nothing is known of the answer yet.
func (k *State) Over(now time.Time, t Times, answered bool) {
	if k.Pause *= 2; !answered || now.Sub(k.Next) > 2*k.Pause { // it was known for long
		k.Pause = 0
	}
	k.Pause = min(max(k.Pause, t.Pause), pauseMax)
	k.Next, k.Told, k.Refusal, k.Stays = now.Add(k.Pause), nil, "", ""
}

// Learn notes the state of a session that can be moved.
func (k *State) Learn(st *continuity.State) {
	k.Told = st
	texts := st.Texts()
	k.Unchanged.Known(texts, st.Reported["client_encoding"] == "UTF8")
	k.Commits = indoubt.Committing(texts)
}

// PreparedText returns the text of a prepared statement of the client, if its state is known.
func (k *State) PreparedText(name string) (text string, known bool) {
	if k.Told == nil {
		return "", false
	}
	s, is := k.Told.Statements[name]
	return s.Text, is
}
