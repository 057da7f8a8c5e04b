// Package hba reads rules in the grammar of pg_hba.conf and finds the rule for a login.
//
// It must not know how a client proves who it is. A line that cannot be honoured exactly is an error, never skipped.
package hba
