// Package faultfs is a disk that can be full, slow, stalled or failing on request, and that can lose its power. It
// shows a directory through FUSE at another place, and every change passes one gate. A journal remembers how everything
// was when it was synced last, so that a loss of power can put that back.
//
// It owns the mount, the faults and the socket on which they are set. It must not know the purpose of the files. A lab
// puts a node's directory on it, so that PostgreSQL, the agent and the quorum member get the errors and the waits of a
// real bad disk. They wait in the kernel, where no signal reaches them. Two alternatives were tried. A loop device with
// a frozen file system stalls as well, but is never slow and never fails. A device mapper target has all of it, but
// many kernels lack one, most of all those of small machines.
//
// Start reading at gate.go, then node.go, then journal.go.
package faultfs
