// Package pgupgrade makes a database cluster of a newer major version from a stopped one, with pg_upgrade.
//
// It owns the programs that this takes, the new directory, and what pg_upgrade does to the old one, which can be taken
// back until a server has run on the new one. It must not know groups, records or agents: it is told which directories.
// Start reading at Job.Make.
package pgupgrade
