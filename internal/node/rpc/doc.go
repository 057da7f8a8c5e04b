// Package rpc has the calls between nodes: one table of methods with what each sends and answers, one way to call one, to ask all and to
// take the first that answers, and the stream of heartbeats.
//
// The names of methods, and the JSON of requests and answers, are the protocol between nodes of different releases: they do not change.
// The package must not know what a method does; package node offers each method once, in one list.
//
// Start reading at Method.
package rpc
