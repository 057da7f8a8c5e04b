// Package ports is the set of a listener's client ports: those of its configuration, and those of names that come and
// go.
//
// It must not know who connects there, or how a connection is accepted.
package ports
