// Package login takes an accepted connection to a client that has proved who it is: what comes before the startup
// packet, the packet, the rule of pg_hba.conf, the wait for a replica, the proof. It bounds what clients may cost that
// have proved nothing. One callback opens the session on the replica; a try that fails for a temporary reason is
// repeated with what was proved. Cancel requests and the console's logins end here.
//
// A login begins in a goroutine of its own, or on an event loop, which completes the simplest ones (LoopClient).
//
// It must not know how a session is opened or relayed, or what becomes of it.
package login
