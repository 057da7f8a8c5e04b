// Package operations has all that administrators may have done on this node: statements, failovers, members that come
// and go, settings, the rotation of the authority, copies, and the restart of the agent. Each is refused before
// anything is written if it can be, and says what to run instead.
//
// Nearly all of them change the group's configuration, or write a request beside it, by compare-and-swap, and the
// agents act on that. A failover that is asked for in a shell and one that is asked for by a statement meet the same
// list of refusals.
//
// Start reading at Service; statements begin at Executor.
package operations
