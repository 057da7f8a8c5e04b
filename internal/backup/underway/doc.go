// Package underway keeps on a node's disk which backup is made there and which restores were begun, so that every other
// process of the node can tell, and what a process that was killed left behind is found.
//
// It owns the files run.json and run.lock of a node's directory backup, the files in its directory restores, the file
// restoring.json of a directory that is restored into, and temporary directories with secrets. A process holds a lock
// on its file for as long as it lives: the kernel releases it however the process ends. The package must not know what
// a backup is made with. Start reading at Begin, BeginRestore and Scratch.
package underway
