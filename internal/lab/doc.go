// Package lab runs a whole group on one machine: ordinary nodes, made and started by the commands that a real node
// uses, side by side on the loopback interface, or each in a network namespace of its own with links that can be shaped
// and cut (network.go, links.go).
//
// It owns the lab's directory, which node has which addresses, the processes of the nodes: which they are, and how they
// are killed, paused and started; and what every link is to be. What a link does is internal/lab/linkem's, in a process
// of its own. It must not know how a node works: it makes one with coterie init, join or witness, starts it with
// coterie agent, and asks it through its management socket. Start reading at Up, then form in up.go.
package lab
