// Package backupcmd is coterie backup, with which a group is backed up, and coterie restore, which makes a new group of
// a backup.
//
// It owns the order of the steps and what a person is told. Package backup decides, a backup.Tool does. Start reading
// at Backup and Restore.
package backupcmd
