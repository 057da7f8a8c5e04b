// Package probe measures a link from its two ends, as applications see it: round trips, the fate of datagrams, and the
// rate of TCP. It is our own ping and iperf, so that the lab's links can be checked where neither is installed.
//
// It must not know how the link is made: it gets nothing but two network namespaces and an address.
//
// Start reading at Ping.
package probe
