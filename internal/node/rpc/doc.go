// Package rpc has the calls between nodes: one table of methods with their requests and answers, and functions that
// call one node, ask all nodes, or take the first that answers. It also has the stream of heartbeats.
//
// The names of methods, and the JSON of requests and answers, are the protocol between nodes of different releases:
// they do not change. The package must not know what a method does; package node offers each method once, in one list.
//
// Start reading at Method.
package rpc
