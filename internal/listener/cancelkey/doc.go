// Package cancelkey mints the keys by which clients cancel their queries, tells the group's keys from invented ones,
// and bounds how often an address may present a wrong one.
//
// It must not know sessions or connections, or how a request gets to its server.
package cancelkey
