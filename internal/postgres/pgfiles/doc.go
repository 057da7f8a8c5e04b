// Package pgfiles reads the files of a data directory that say how far its history goes: pg_control, timeline histories
// and WAL.
//
// It parses what PostgreSQL 14 to 18 write and never talks to a server. It must not know why a position is asked for.
// Start reading at Control, Lineage and End.
package pgfiles
