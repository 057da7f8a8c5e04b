// Package startup gives a startup packet one meaning: the role, the database, the settings, the intent to read or to
// write, and the guarantee for its reads.
//
// The packet for PostgreSQL is built anew from that meaning, so that PostgreSQL runs exactly the checked request. It
// must not know routes, rules or connections.
package startup
