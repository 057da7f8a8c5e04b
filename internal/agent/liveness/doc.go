// Package liveness judges which members are alive. It owns the heartbeats that a primary sends and voters acknowledge,
// the evidence and votes of a voter, and pings.
//
// Nothing here proves anything about data. Reachability keeps a candidate from deposing a leader in vain. Evidence
// allows a vote to be tried. The proof is the answer lease (package lease). It must not know how members are reached:
// it is given functions.
//
// Start reading at Heartbeater, then Voter. Goroutines: Heartbeater.Run starts two for each voter and waits for them;
// Pinger.Run starts one for each member and round, and waits for them. Voter.Watch is one itself.
package liveness
