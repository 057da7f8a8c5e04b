// Package health watches one node's PostgreSQL and the disks under it, and says from which FAILURE_CONDITION_LEVEL on what it sees is
// a failure.
//
// It owns the probes (a new connection, a tiny commit, a write, fsync and read in every directory the data is in, free space, each
// database), their deadlines, and the hysteresis between a probe that failed and an illness: overload is none, waiting for synchronous
// replication is none. It decides nothing: ag.Decide compares what it reports with the group's options.
//
// It must not know the record, other nodes, or SQL: who asks the server is given to it as Server. Probes run apart from every other
// goroutine, because a system call on a dead disk never returns; each probe has at most one attempt under way, so that nothing piles up.
// Start reading at Monitor.Run, then judge.
package health
