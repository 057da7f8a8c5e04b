// Package health watches one node's PostgreSQL and the disks under it, and reports from which FAILURE_CONDITION_LEVEL
// on its findings count as a failure.
//
// It owns the probes, their deadlines, and the hysteresis between a failed probe and a finding. The probes are a new
// connection, a tiny commit, a write, fsync and read in every directory with data, free space, and each database.
// Overload and waiting for synchronous replication are not findings. A mirror below the directories that has lost a
// side is reported beside them, and is no failure. It decides nothing: ag.Decide compares its report
// with the group's options.
//
// It must not know the record, other nodes, or SQL: Server asks the server. Each probe runs in a goroutine of its own,
// because a system call on a dead disk never returns. A probe has at most one attempt under way, so that attempts do
// not pile up. Start reading at Monitor.Run, then judge.
package health
