// Package decisions records the decisions of a node: the last ones in memory, and a bounded file of those worth
// keeping. It also explains the changes of the leadership from the decisions of several nodes.
//
// It must not know how decisions are made or carried out; package ag and package agent do that. It never reads another
// node's files: the caller collects the decisions of other nodes.
//
// Start reading at Log.Note, then Merge and Changes in leadership.go.
package decisions
