// Package faultfs is a disk that can be full, slow, stalled or failing on request: a directory shown through FUSE at
// another place, every change to which passes one gate.
//
// It owns the mount, the faults and the socket on which they are set. It must not know what the files are for: a lab
// puts a node's directory on it, so that PostgreSQL, the agent and the quorum member get the errors and the waits of a
// real bad disk, and wait in the kernel where no signal reaches them. What was tried beside it: a loop device with a
// frozen file system stalls as well, but is never slow and never fails; a device mapper target can all of it, but many
// kernels, small machines' above all, have none.
//
// Start reading at gate.go, then node.go.
package faultfs
