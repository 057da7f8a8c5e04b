// Package seeding fills a replica's data directory with a verified copy of the primary, and makes sure that nothing less than
// a complete copy can ever be started.
//
// It owns the base backup protocol (PostgreSQL 14 to 18), the checks of what arrives (tar entries, manifest) and the order in
// which a data directory becomes startable: global/pg_control is installed by rename, last of all, and that rename is the
// commit point. It must not know how bytes travel (it is given a net.Conn that reaches the source's private socket) nor what
// the group has agreed on.
//
// Start reading at Run, then Prepare, then install in commit.go.
package seeding
