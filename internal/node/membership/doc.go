// Package membership knows who is in the group as this node last saw it: it looks replicas up, decides which peer may open what here,
// and keeps the configuration on disk so that a starting node knows its peers.
//
// It must not know how a peer is reached or what the quorum store says now: the agent reports each new configuration.
//
// Start reading at Members.
package membership
