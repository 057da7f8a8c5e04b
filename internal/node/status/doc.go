// Package status reports on this node and the group: the status and the metrics, the facts behind the views, the
// journal of events, and the explanation of past decisions. It answers from memory, or asks every member in reach
// within a bound.
//
// It must not change anything: package operations does.
//
// Start reading at Service.
package status
