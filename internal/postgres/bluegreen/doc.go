// Package bluegreen fills a new database cluster, green, from one that serves, blue, by logical replication, and has
// green have everything at the moment at which the one takes the place of the other.
//
// On the way back (Pair.Back) it is the other way round: the cluster that was left follows the one that serves, from
// the moment at which that took its place.
//
// It owns the objects that this needs on blue: a publication in each database, and the slots of green. It must not know
// the group: when blue is quiet, and what becomes of both clusters, is its caller's. Start reading at Pair.
package bluegreen
