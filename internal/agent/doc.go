// Package agent is one node's loop: observe, let ag.Decide say what to do, act.
//
// It owns the node's view of the group and the one long action that may be under way. Packages below it own the lease,
// the signs of life, the durable marks, the guard of the record, and the record of decisions. It decides nothing that
// could lose data: that is ag's part. It must not know how a store, a PostgreSQL server, a keeper or a stream is made.
// It sees them through the small interfaces of ports.go, which package node joins to the real ones and the tests to
// fakes.
//
// Start reading at Agent.Run, then turn in loop.go. Goroutines: the loop, the lease renewer, the heartbeats, the
// pinger, the chores, the background writer, and at most one worker. Run starts them and waits for all of them.
package agent
