// Package ag defines what an availability group is, and decides what should happen to it next.
//
// It owns the vocabulary (Group, Replica, Record, Epoch, Position, ...), the rule by which a replica may lead
// (takeover.go, promotion.go), and the arithmetic of the members that must acknowledge a commit (quorum.go). It also
// owns the routing of clients (routes.go) and Decide, which maps the observations of one node (View) to its next steps
// (Plan).
//
// It must not know how anything is done: no clock, no I/O, no logging, no goroutine; the standard library only.
// Adapters observe and act, package agent joins them, and package agsim runs the same Decide through every interleaving
// it can find.
//
// Start reading at Decide, then Plan, then Record, then quorum.go. The rules are in docs/internals/safety.md, whose
// sections are named in the comments (S1 to S9 are its properties).
package ag
