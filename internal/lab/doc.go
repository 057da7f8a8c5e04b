// Package lab runs a whole group on one machine: ordinary nodes, made and started by the commands that a real node
// uses. They share the loopback interface, or each has a network namespace of its own with links that can be shaped and
// cut (network.go, links.go).
//
// It owns the lab's directory, the addresses of the nodes, and their processes: how they are found, killed, paused and
// started. It also owns the wanted state of every link. internal/lab/linkem carries the packets, in a process of its
// own. It must not know how a node works: it makes one with coterie init, join or witness, starts it with coterie
// agent, and asks it through its management socket. Start reading at Up, then form in up.go.
package lab
