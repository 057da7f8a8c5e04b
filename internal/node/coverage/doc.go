// Package coverage keeps, for a week, which part of the sessions of this node's clients a failover would have kept, and
// why not the others: by the hour of all sessions, and by the day of each application and user.
//
// It owns the sums, their bounds and the file in which they survive a restart of the agent. It must not know how a
// session is judged: that is asked of the listener once a minute, which answers from its memory. A file that cannot be
// read or written costs history and nothing else.
//
// Start reading at History.
package coverage
