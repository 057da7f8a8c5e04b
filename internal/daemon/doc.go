// Package daemon makes a process what it must be before it runs a node: its user, its capabilities, its timer slack, a program file that this
// user can execute, and a log that never blocks.
//
// It knows nothing of groups.
//
// Start reading at BecomeServerUser.
package daemon
