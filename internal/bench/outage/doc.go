// Package outage repeats failovers under one writer and times them: a node's death, its silence, a planned failover,
// the death of a secondary or a witness. It also measures peers, the cost of the listener, and the resources of an idle
// agent.
//
// It owns the faults, the raw samples and the figures made of them. It must not know how a group works: it is a client
// of the listener, of the agents' management sockets and of the lab, which it is handed as an interface.
//
// Start reading at Measure, then Samples.Figures.
package outage
