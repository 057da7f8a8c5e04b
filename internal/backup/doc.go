// Package backup decides about backups of a group and its archive of WAL: what is wanted (Plan), which backups and WAL
// a repository has (Catalog), up to where they can be restored (Gaps, Choose), what is wrong (Judge).
//
// It runs nothing and opens no file. A Tool does what it decides; package pgbackrest is one. It must know neither the
// commands nor how a node runs. Start reading at Plan, Tool and Judge.
package backup
