// Package membership knows the members of the group as this node last saw them. It looks replicas up, decides which
// class of stream a peer may open here, and keeps the configuration on disk so that a starting node knows its peers.
//
// It must not know how a peer is reached or the present content of the quorum store: the agent reports each new
// configuration.
//
// Start reading at Members.
package membership
