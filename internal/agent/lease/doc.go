// Package lease is the time-limited right of a node to act as primary: the lease that renewals of /lead extend, and the
// answer lease that voters extend by acknowledging heartbeats.
//
// It owns both deadlines, on CLOCK_BOOTTIME, and the epoch that the keeper is armed for. It must not know when a node
// should hold a lease: the agent's loop says so with Hold. It sees the store and the keeper through one method each.
//
// Start reading at Lease, then Answers.
package lease
