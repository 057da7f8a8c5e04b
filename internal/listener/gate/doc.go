// Package gate decides which answers of a server may pass to a client, and when: none of a primary whose time is over
// (Reader), none of a server that was promoted under its session (Recovery), and none that may have ended a commit
// which the synchronous secondaries do not have (Answers).
//
// It must not know how answers are carried, what a client gets instead of one, or how many members confirm a commit.
package gate
