// Package leavecmd is coterie leave, with which a node leaves its group and keeps its data.
//
// It owns the reasons for which leaving is refused, and the question to a person. The member that is asked removes the
// node, and package provision does what is to be done on the disk. Start reading at Leave and decide.
package leavecmd
