// Package pgbackrest keeps backups with the program pgBackRest.
//
// It owns how the program is configured and called and how its answers are read. Package backup decides on the plan.
// The program's configuration and its locks are inside the node directory, never in /etc. Start reading at Tool.
package pgbackrest
