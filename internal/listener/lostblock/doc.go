// Package lostblock answers the next request of a client whose transaction block was lost with its server, between two
// requests. The client hears of the loss by an error, before anything of it is forwarded. It is pure: it takes bytes of
// the client and returns those for it. Start reading at Reply.Feed.
//
// It must not know sessions, sockets or servers.
package lostblock
