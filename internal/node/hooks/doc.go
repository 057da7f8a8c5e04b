// Package hooks runs the commands of a node directory's hooks.d for what happens to the node.
//
// It owns which files are commands, their order, their environment, and the bounds of all that: one runs at a time,
// each for so long, and so many events wait. It is in nobody's way: it reads what the node remembers, and nothing waits
// for it. It must not know what an event means.
//
// Start reading at Runner.
package hooks
