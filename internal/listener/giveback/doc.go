// Package giveback is the exchange by which a node gives the session of another node's client back to the listener of
// that node, which continues it elsewhere: its state, and what was not forwarded of the client's bytes.
//
// It must not know sessions, or where one goes on. Start reading at Give and Take, the two ends.
package giveback
