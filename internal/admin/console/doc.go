// Package console is the administrators' database: it speaks the PostgreSQL protocol, simple and extended, over a connection that the
// listener has authenticated, and gives each statement to a Backend: those of the availability-group language to be executed, the
// others as SQL on the views.
//
// It owns sessions, settings, prepared statements, the types on the wire and what clients ask at their start. It must not know how a
// statement is executed, nor where the views come from. Start reading at Serve, then Session.Run.
package console
