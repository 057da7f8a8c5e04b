// Package preflight examines a host and its neighbours before a group exists: names, ports both ways, round trips,
// clocks, software, flushes and space.
//
// It does not depend on a group or a running node.
//
// Start reading at DescribeMachine.
package preflight
