// Package replay keeps what a client sends in a transaction, and a digest of each answer that it gets, so that the
// transaction can be executed again on another server when its own is lost: if all answers are the same there, the
// client cannot tell. It is pure: it takes bytes and returns bytes. Start reading at Log, then Run.
//
// It must not know sessions, sockets or servers.
package replay
