// Package resume makes a session of a new server the one that a client had on another: it asks the new server, restores
// the state there and compares it, executes an open transaction again, and proves what became of a COMMIT or a change
// whose answer was lost.
//
// It owns what is said to the new server until the client's own bytes follow. It must not know clients, routes or how a
// session is carried: the caller has opened the session, and knows what is to be resumed. Start reading at Server.
package resume
