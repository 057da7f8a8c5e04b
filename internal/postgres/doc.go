// Package postgres is one PostgreSQL instance (14 to 18) as its own node sees it: its binaries, files, settings,
// position in the history of the data, promotion and rewind.
//
// It owns everything that reads or writes PGDATA and every session of the agent to its own server. It does not start or
// stop the server: Args says how it must be started, package keeper does it.
//
// It must not know the group, the record, other nodes or why something is asked of it: an upstream is a socket
// directory, a rewind source a connection string. Of our packages it imports only ag, for the vocabulary.
//
// Start reading at Config and Instance, then Args, Observe and EndOfWAL. The rules are in docs/internals/postgresql.md
// and docs/internals/safety.md.
package postgres
