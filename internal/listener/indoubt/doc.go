// Package indoubt proves what became of a COMMIT whose answer was lost with its server. Before the COMMIT the server is
// asked for the number of the transaction; afterwards the new primary is asked for the status of that number. A number
// may have been given again since, so the answer is judged by what the primaries between the two have noted of their
// numbers (ag.Xids). Asking decides before which requests of a session the question goes. It is pure: it takes bytes
// and facts, and returns bytes and an outcome. Start reading at Request, then Commit.Outcome.
//
// It must not know sessions, sockets or servers.
package indoubt
