// Package leavecmd is coterie leave, with which a node leaves its group and keeps its data.
//
// It owns what is refused, and what of it a person must confirm. The member that is asked removes the node, and package
// provision does what is to be done on the disk. Start reading at Leave and decide.
package leavecmd
