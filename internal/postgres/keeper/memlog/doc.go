// Package memlog is the standard error of a server as a file in memory, which is copied to a file on disk.
//
// The server appends to memory, so that a full, slow or broken disk neither delays it nor loses a message before the
// agent has read it. The package owns the file in memory, the copying and the bound of what waits for the disk. It
// must not know what the messages mean.
package memlog
