// Package agsim runs the real ag.Decide on every node of a small made-up group, through interleavings a test bed would
// need years for.
//
// It owns a model of what surrounds the decisions: servers whose write-ahead logs are paths in a tree, streams,
// synchronous replication, a store that compares and swaps, sessions of clients with a listener before them, and
// faults. Explore walks every interleaving within bounds, without clocks; Run plays one long random history with
// clocks, heals it, and requires that the group comes to rest. After every event the same invariants are checked
// (check.go).
//
// It must not know the adapters, nor decide anything itself: step.go has the agent's handling of a plan, and nothing
// more.
//
// Start reading at World in world.go, then events in explore.go, then check.go. sessions.go has the clients.
package agsim
