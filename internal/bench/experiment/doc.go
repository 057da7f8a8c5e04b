// Package experiment has the published experiments. Each is a question about a group, or about a pair of connection
// strings, that is answered with an interval. They are read-only routing, the TPC-C-derived mix, reading a million
// rows, the insert matrix, the tunnel, logins, and the outage of each client in a failover.
//
// It owns what the arms of each are, which sizes are the published ones, and the sentence that answers. It must not
// know how a group is made or broken: Group and Faults do.
//
// Start reading at Bed, then Routing.
package experiment
