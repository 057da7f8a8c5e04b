// Package seeding fills a replica's data directory with a verified copy of the primary, and makes sure that nothing less than
// a complete copy can ever be started.
//
// It owns both ends of the transfer: the backup window and the reading of files at the source (source.go, window.go, read.go,
// list.go), the comparing and storing at the target (target.go, stream.go, tidy.go), what travels between them (protocol.go,
// codec.go, auto.go), and the order in which a data directory becomes startable: global/pg_control is installed by rename,
// last of all, and that rename is the commit point (prepare.go, commit.go). It must not know how connections are made nor what
// the group has agreed on.
//
// DESIGN.md beside this file says why a copy is valid. Start reading at Run, then seeder.round, then Source.Serve.
package seeding
