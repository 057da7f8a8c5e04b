// Package agent is one node's loop: observe, let ag.Decide say what to do, act.
//
// It owns the node's view of the group, its lease, its durable marks (promise, copy, promotion under way) and the one long
// action that may be under way. It decides nothing that could lose data: that is ag's. It must not know how a store, a
// PostgreSQL server, a keeper or a stream is made; it sees them through the small interfaces of ports.go, which cmd/coterie
// joins to the real ones and the tests to fakes.
//
// Start reading at Agent.Run, then turn in loop.go. Goroutines: the loop, the lease renewer, the pinger, the chores, and at
// most one worker; Run starts them and waits for all of them.
package agent
