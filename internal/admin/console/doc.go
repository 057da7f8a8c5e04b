// Package console is the administrators' database. It speaks the PostgreSQL protocol, simple and extended, on a
// connection that the listener has authenticated. A Backend executes the statements of the availability-group language,
// and queries the views for the others.
//
// It owns sessions, settings, prepared statements, the types of the protocol and the answers to clients' start-up
// queries. It must not know how a statement is executed, nor where the views come from. Start reading at Serve, then
// Session.Run.
package console
