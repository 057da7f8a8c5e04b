// Package listener is the address that clients use. It authenticates them, routes each session by intent to a replica
// that may serve it, and relays the PostgreSQL protocol between the two.
//
// It owns the client ports, cancel keys, the pool of backends, and the answer gate: no byte that the local PostgreSQL
// produced as primary is passed after the gate's deadline. It must not know the quorum store, certificates between
// nodes, or how a replica is reached: Config brings functions for those, and routes arrive as immutable ag.Routes.
//
// Start reading at serve.go (a connection's life), then session.go and relay.go. loop.go, loopsession.go and
// writebatch.go are the same relay for plain sessions, many on one thread; offload.go hands them to the kernel.
package listener
