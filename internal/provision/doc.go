// Package provision makes and repairs node directories while no agent runs: it founds a group, writes what a node that joined needs, and
// recovers a group whose quorum is lost.
//
// It must not know how a command is typed or how an agent runs.
//
// Start reading at FoundGroup and StoppedNode.
package provision
