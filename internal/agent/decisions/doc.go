// Package decisions is the record of what a node decided: the last decisions in memory, a bounded file of those worth keeping, and
// what the decisions of several nodes tell about changes of the leadership.
//
// It must not know how decisions are made or carried out; package ag and package agent do that. It never reads another node's files:
// the caller collects the decisions of other nodes.
//
// Start reading at Log.Note, then Merge and Changes in leadership.go.
package decisions
