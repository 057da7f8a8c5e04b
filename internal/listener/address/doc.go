// Package address opens the addresses on which clients connect: TCP ports, and Unix sockets that carry a lock file as
// PostgreSQL's own do.
//
// It must not know who connects there, or what becomes of a client.
package address
