// Package routing says where a session goes by the routes in force, whether it may stay there, and what a client hears
// where no replica takes it. Pure: a snapshot of the routes in, a decision out.
//
// It must not know how a client is connected, how long it waits, or how far a copy is behind.
package routing
