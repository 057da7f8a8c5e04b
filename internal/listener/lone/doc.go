// Package lone keeps the requests of a session outside a transaction block until they are answered, so that those that
// change nothing, or have not reached their server, can be executed on another one when it is lost. It is pure: it
// takes bytes and returns bytes. Start reading at Log, then Log.Fate.
//
// It must not know sessions, sockets or servers.
package lone
