// Package provision makes and repairs node directories while no agent runs: it founds a group, writes the files of a
// joined node, and recovers a group whose quorum is lost.
//
// It does not depend on the command line or on a running agent.
//
// Start reading at FoundGroup and StoppedNode.
package provision
