// Package register is a workload of registers, and the judge of what was read from and written to them.
//
// Clients read, write and compare-and-swap rows at the same time, each statement a transaction of its own; a further
// client counts, and readers watch the count on every replica. Check then reports whether all of the answers can have
// come from one copy of the data that did one operation after the other (linearizability, decided by porcupine). It
// also reports whether any session saw the count go back.
//
// An operation without an answer stays open: such a write may take effect at any later time, or never.
//
// It must not know of groups, failovers or faults. Start reading at Load.Run, then Check in check.go.
package register
