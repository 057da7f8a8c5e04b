// Package recordguard refuses a record that is older than one this node, or another member, has seen before.
//
// It owns the latest record seen and the reports of other members about theirs. It must not know how a store is read or
// how members are asked: the agent passes the results in. It performs no I/O but through the function that Keep is
// given.
//
// Start reading at Guard.CheckMonotonic.
package recordguard
