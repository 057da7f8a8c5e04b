// Package provision makes and repairs node directories while no agent runs: it founds a group, writes the files of a
// joined node, recovers a group whose quorum is lost, and takes a node apart that leaves its group.
//
// It does not depend on the command line or on a running agent.
//
// Start reading at FoundGroup, StoppedNode and Depart.
package provision
