// Package restartcmd is coterie restart: of a node's agent, and of PostgreSQL on one replica after the other.
//
// It owns the order and the waiting between replicas; the nodes decide whether a server may be stopped. Start reading
// at Restart.
package restartcmd
