// Package experiment is the published experiments, each a question that is put to a group, or to a pair of connection
// strings, and answered with an interval: read-only routing, the TPC-C-derived mix, reading a million rows, the insert
// matrix, the tunnel, logins, and the outage of each client in a failover.
//
// It owns what the arms of each are, which sizes are the published ones, and the sentence that answers. It must not
// know how a group is made or broken: Group and Faults do.
//
// Start reading at Bed, then Routing.
package experiment
