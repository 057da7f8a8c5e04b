// Package metrics is what /metrics of a node shows: the name, type, unit, labels and meaning of every metric, and the
// values that follow from the facts of a moment.
//
// It must not know where the facts come from: package status gathers them from memory. It counts nothing and keeps
// nothing: a counter belongs to the part that counts.
//
// Start reading at Facts, then Definitions and Collector.
package metrics
