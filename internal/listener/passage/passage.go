package passage

import (
	"sync/atomic"

	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/gate"
	"github.com/coteriedb/coterie/internal/listener/instead"
	"github.com/coteriedb/coterie/internal/listener/lone"
	"github.com/coteriedb/coterie/internal/listener/underway"
)

// Passage is the way of a session's bytes, in both directions.
type Passage struct {
	// Confirmation judges the answers. Some of it is for other goroutines.
	Confirmation gate.Answers
	Pooled       bool        // backends of its server may serve other clients: Host.Uses hears of the requests
	Terminated   atomic.Bool // the client sent Terminate, or has left
	FatalSent    atomic.Bool // PostgreSQL sent a FATAL error itself

	// Of the requests:
	requests pgwire.Framer
	Instead  instead.Watch // for statements that are refused
	Copies   bool          // the client has prepared a statement that may be a COPY
	Behind   []byte        // goes behind the first message of a chunk, and is none of the client's: guarded by the lock of Work

	// Of the answers:
	answers    pgwire.Framer
	Starting   bool                   // the server is not ready yet, and the session holds a turn to start
	MidMessage bool                   // the client has received half a message
	Recovery   gate.Recovery          // of the server
	Guarding   lone.Guarding          // the first request is one that is executed again, and can write nothing
	Given      []byte                 // what followed the message by which the other node gives the session back; nil: none came
	Unanswered []byte                 // a question that was perhaps not forwarded by the other node
	Key        atomic.Pointer[[]byte] // the backend's cancel key: pid and secret; nil: not seen here
}

// Host is the session whose bytes they are.
type Host interface {
	Ended() bool    // whether the session has ended
	Ends(with End)  // ends it
	FromNode() bool // whether its server is behind another node's listener

	// Of the requests; the caller holds the lock of Work:
	Drain() *Drain                                  // the drain of the local server that is in force; nil: none
	Changes(p instead.Piece) (over bool)            // hears of a query, or of one that is parsed; over: it has ended the session for that
	Uses(typ byte, piece []byte, begun, whole bool) // hears of a message of a session with Pooled
	KeepsBackend() bool                             // decides, at Terminate, whether the server gets that
	Forwarded()                                     // hears that a chunk is forwarded

	// Of the answers:
	Started()       // hears that the server is ready for the first time
	Taints()        // hears of something after which the backend must serve no other client
	NumberRefused() // hears that the question for the number of a transaction has failed
}

// Drain is a drain that is in force.
type Drain struct {
	Over chan struct{} // closed at its end, when held requests continue
}

// End is for what a session ends by its own bytes.
type End uint8

// The reasons for that.
const (
	Promoted    End = iota + 1 // its server was promoted under it
	HiddenWrite                // a request that is executed again would have written
	OpenBlock                  // the block around a request that is executed again has not ended
	Member                     // a stream of logical replication goes by the name of a member
	OutOfTurn                  // a session of logical replication sends a command before the previous one is over
)

// RequestsAtBoundary reports whether no message of the client has begun.
func (p *Passage) RequestsAtBoundary() bool { return p.requests.AtBoundary() }

// AnswersAtBoundary reports whether no message of the server has begun.
func (p *Passage) AnswersAtBoundary() bool { return p.answers.AtBoundary() }

// CycleEnded is called at ReadyForQuery.
func (p *Passage) CycleEnded(w *underway.Work) {
	// owed is read last, so nothing ran at some moment after all counted cancel requests had been delivered.
	if p.Confirmation.CycleEnded(w.Status.Load() != 'I') && w.Owed.Load() <= 0 && !w.Unsynced.Load() {
		p.Confirmation.Clear()
	}
}
