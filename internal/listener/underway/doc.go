// Package underway keeps what is under way between a client and its PostgreSQL, as both directions of its session have
// seen it: requests without an answer, the open transaction, and what of both can go on at another server. It judges
// what becomes of that when the server is lost, and what would.
//
// It must not know sockets, other sessions, or how a session reaches its next server. Start reading at Work, then
// Work.Interrupt.
package underway
