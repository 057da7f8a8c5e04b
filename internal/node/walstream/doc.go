// Package walstream joins what carries WAL between nodes: links, the endpoint and replication. It decides which copy
// may stream from this node, and describes the links and the paths they take.
//
// It must not know who is a member: it is given lookups.
//
// Start reading at Streams and Links.
package walstream
