// Package bench holds the measuring instruments that are pointed at a group: the ledger of acknowledged commits, the outage
// that its clients saw, and the goals that every figure is compared with.
//
// It owns what a client can know of a server from outside: what was acknowledged, when, and by which timeline. The sessions
// the instruments use are in package session, the TPC-C-derived database and its twelve conditions in package tpcc.
//
// It must not know how a group works: no package of Coterie but the clock is imported, so that the same instruments measure
// peers in the same way, and a mistake in the product cannot hide in its own yardstick.
//
// Start reading at Ledger, then Ledger.Verify, then Report in goals.go.
package bench
