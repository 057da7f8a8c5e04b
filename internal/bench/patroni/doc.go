// Package patroni runs Patroni with etcd and HAProxy on this machine, as the peer of a benchmark. It starts three
// nodes, three etcd members and one HAProxy, on ports of their own, in one directory, from the distribution's packages.
//
// It owns their configuration, their processes and their end. The configuration is that of Patroni's own documentation,
// with synchronous_mode on; Settings are the differences between the arms of a comparison. It must not know the
// measurements.
//
// Start reading at Start.
package patroni
