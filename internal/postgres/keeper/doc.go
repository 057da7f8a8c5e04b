// Package keeper is the parent of the postmaster. It is a tiny process that ends PostgreSQL, with all of its forks,
// when the agent that leads the group dies, stops, or lets its lease run out.
//
// It owns the postmaster process, the fence deadline, standby.signal in the data directory, and the keeper folder of
// the node directory (lock, state, fenced). It serves one agent over a Unix socket, in lines of JSON.
//
// It must not know SQL, TLS, the quorum store or the group. It uses no network beyond that socket, and nothing slow or
// likely to fail: its one duty is to be on time. The binary dispatches Main before anything else.
//
// Start reading at keeper in loop.go: one goroutine owns all state, and every rule of
// docs/internals/safety.md, "Keeper" is a method of it. Client in client.go is the agent's side.
package keeper
