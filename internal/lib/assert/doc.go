// Package assert ends what rests on a state that cannot be.
//
// It owns the check and the error of a violated one. It must not know what ends: the caller of Guard decides that. An
// assertion is for a mistake in this program. An error, and not a violated assertion, is for everything that a person,
// a network, a disk or PostgreSQL may do. It is checked in tests and in production alike.
//
// Start reading at That.
package assert
