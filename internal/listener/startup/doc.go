// Package startup gives a startup packet one meaning: who wants which database, with which settings, to read or to write, and how
// far its reads must be trusted.
//
// The packet for PostgreSQL is built anew from that meaning, so that what was checked is what is run. It must not know routes,
// rules or connections.
package startup
