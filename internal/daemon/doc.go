// Package daemon prepares a process for running a node: its user, its capabilities, its timer slack, a program file
// that this user can execute, and a log that never blocks.
//
// It does not depend on groups.
//
// Start reading at BecomeServerUser.
package daemon
