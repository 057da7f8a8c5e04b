// Package fencetime knows how long this host takes to fence a server. It measures the time when a node is made, keeps
// the measurement in the node directory, and compares it with a lease profile.
//
// It must not know the group: a caller names the profile.
//
// Start reading at Save and Check.
package fencetime
