// Package pgserver is PostgreSQL, its keeper and its health probes as the agent wants them: it translates between the
// adapters below package postgres and the ports of package agent.
//
// It must not know the group or other nodes.
//
// Start reading at Instance and Server.
package pgserver
