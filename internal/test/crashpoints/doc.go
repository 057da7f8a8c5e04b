// Package crashpoints lists the places at which a test ends a process of a group, and what makes a process come there.
//
// It owns the list and its page in the documentation. It must not know how a group is run: package e2e does that. Start
// reading at Scenarios.
package crashpoints
