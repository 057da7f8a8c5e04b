// Package pgwire reads and writes the parts of the PostgreSQL frontend/backend protocol that more than one package
// needs: the first packet of a connection, its parameters, typed messages, their boundaries in a stream, and
// ErrorResponse.
//
// It must not know sessions, replicas or sockets. Every length that comes from a peer is bounded, and no input panics.
package pgwire
