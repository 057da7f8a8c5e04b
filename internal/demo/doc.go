// Package demo shows a group at work and tests it. It loads a database, kills the primary under load, shows the
// failover as the agents saw it, and compares the acknowledged rows with the rows of every replica.
//
// It owns the story and its verdict. It must not know how a group works: it is a client of the listener, of the agents'
// management sockets and of the lab, which it is handed as an interface.
//
// Start reading at Run in demo.go, then report.go; broken.go makes the demo fail.
package demo
