// Package linkem is the lab's network: nodes in network namespaces of their own, and between every two of them a link
// that can be slow, lossy and cut, one direction at a time and while it runs. It works in user space, on TUN devices,
// since many kernels come without netem.
//
// It owns the namespaces and devices that carry the lab's name, one /24 of addresses per lab, and the one switch that
// passes every packet between them.
//
// It must not know what runs in the namespaces: no node, agent or server; the lab starts those.
//
// Start reading at Shape, what a link is like; then path in path.go, which decides a packet's fate and has no clock and
// no device; then burst in batch.go, what a device passes at a time; then port in port.go, the thread that moves
// packets; then Network.
package linkem
