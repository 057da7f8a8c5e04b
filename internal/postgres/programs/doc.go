// Package programs finds the PostgreSQL installations of this machine and runs their programs.
//
// It must not know any data directory. Start reading at Find.
package programs
