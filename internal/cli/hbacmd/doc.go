// Package hbacmd is coterie hba: the rules by which the listeners of a group decide who may log in.
//
// It owns the spelling of the command, and says where a file of rules is wrong before a node is asked. The nodes decide
// whether the rules are taken. Start reading at HBA.
package hbacmd
