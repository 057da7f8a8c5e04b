// Package agenttest holds the fakes on which the agent is tested, and the contracts they share with the real adapters.
//
// It owns a small world: a record that several agents share, and nodes. Each node models a server, its keeper, its
// files and the WAL streams between them. It must not know how the agent decides. Only tests import it.
//
// Start reading at World, then node.go. Nothing here runs on its own but the keepers' deadlines. Every event of the
// world is an effect of a call, so that a test in a testing/synctest bubble is deterministic but for the order of
// goroutines.
package agenttest
