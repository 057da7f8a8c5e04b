// Package recovery makes the record of a group whose quorum's store is lost, from the accounts of its stopped members.
//
// It is as pure as package ag: a function of its arguments, with no I/O and no clock. Reading the members' disks,
// asking the administrator and writing the new store belong to the caller.
//
// Start reading at Recover.
package recovery
