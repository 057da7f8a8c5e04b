// Package backupruns starts backups of this node's server that another node asks for, tells what is under way here, and
// remembers what the other nodes tell of theirs.
//
// A backup is made by the command coterie backup run in a process of its own, as if a person had run it here. The
// package must not know how, nor where a backup should be made: the node that asks has chosen. Start reading at Jobs
// and Watch.
package backupruns
