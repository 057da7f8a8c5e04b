// Package session is one measuring client's connection to whichever of several servers answers.
//
// It owns how a client finds a server (one try per host with its own deadline, round robin, jittered back-off), how
// long an operation may take, and what may be concluded when one fails: Outcome. It never repeats an operation and
// never sends a cancel request: a client that gave up knows nothing of the fate of its statement, and cancelling a
// commit that waits for a synchronous secondary changes that fate.
//
// It must not know what is being measured. Start reading at Session.Do, then Classify.
package session
