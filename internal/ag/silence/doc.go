// Package silence judges whether the silence of a member is unusual: a Detector learns the rhythm in which one observer
// hears of one member, and compares the present silence with it.
//
// A suspicion proves nothing. It says when a vote is worth a try; the proof is the answer lease (package ag, Answer).
// So a suspicion that is wrong costs a failover and no data.
//
// It must not read a clock: times are arguments, by one clock that also counts while the machine is suspended. Start
// reading at Detector.Judge.
package silence
