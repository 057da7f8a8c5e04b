// Package linkem is the lab's network: nodes in network namespaces of their own, with a link between every two of them.
// A link can be slow, lossy and cut, one direction at a time and while it runs. It works in user space, on TUN devices,
// since many kernels come without netem.
//
// It owns the namespaces and devices that carry the lab's name, one /24 of addresses per lab, and the one switch that
// passes every packet between them.
//
// It must not know what runs in the namespaces: no node, agent or server; the lab starts those.
//
// Start reading at Shape, the properties of a link. Then read path in path.go, which decides a packet's fate and has no
// clock and no device, and burst in batch.go, the unit that a device passes. After them come port in port.go, the
// thread that moves packets, and Network.
package linkem
