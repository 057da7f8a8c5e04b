// Package datadir reads and changes the few files of a data directory that the keeper needs: standby.signal,
// postmaster.pid and the state in pg_control.
//
// It starts no program and opens no connection, so that the keeper depends on nothing but the disk. Start reading at
// PutStandbySignal and AcceptsWrites.
package datadir
