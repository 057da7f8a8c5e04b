// Package embedded runs the etcd member of one node inside the agent's process.
//
// It owns the member's life and its settings, the file that records that it was started, the connections that are
// handed to it, and the handling of etcd's own failure. It must not know the keys of a group, nor which member leads
// it: that is package etcd.
//
// Start reading at Start in member.go, then failure.go.
package embedded
