// Package proc starts, lists and kills the processes below the keeper, by prctl(2), wait(2) and /proc.
//
// It must not know PostgreSQL. Start reading at BecomeReaper, Forker and Reap.
package proc
