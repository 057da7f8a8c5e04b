// Package session is one measuring client's connection to whichever of several servers answers.
//
// It owns the search for a server (one try per host with its own deadline, round robin, jittered back-off), the
// deadline of an operation, and the conclusion from its failure: Outcome. It never repeats an operation and never sends
// a cancel request. A client that gave up knows nothing of the fate of its statement, and cancelling a commit that
// waits for a synchronous secondary changes that fate.
//
// It must not know the measurement. Start reading at Session.Do, then Classify.
package session
