// Package prospect judges what would become of a session: if its server were lost now, and in a planned failover. Pure:
// what is known of the session in, a verdict with its reason out. The reasons are those that clients, views and metrics
// show.
//
// It must not know how a session is moved, or how its facts are found.
package prospect
