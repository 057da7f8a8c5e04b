// Package observe is a group as its operator sees it from outside: which replica takes writes, which are synchronized,
// what the agents decided, and a screen that shows it.
//
// It owns the interface of a lab that the demo and the benches of failovers need, the questions to its agents, and the
// deadlines of an answer. It must not know how a group works: it is a client of the agents' management sockets.
//
// Start reading at Lab, then Primary and Watch.
package observe
