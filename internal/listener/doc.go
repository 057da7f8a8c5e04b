// Package listener is the address clients use: it authenticates them, routes each session by intent to the replica that may
// serve it, and relays the PostgreSQL protocol between the two.
//
// It owns the client ports, the startup packet, pg_hba rules, SCRAM, cancel keys and the answer gate (no byte that the local
// PostgreSQL produced as primary is passed after the gate's deadline). It must not know the quorum store, certificates
// between nodes, or how a replica is reached: Config brings functions for those, and routes arrive as immutable ag.Routes.
//
// Start reading at serve.go (a connection's life), then session.go and relay.go; loop.go and pump.go are the same relay for plain
// sessions, many on one thread.
package listener
