// Package ddl is the availability-group language: CREATE, ALTER and DROP AVAILABILITY GROUP as administrators know them, and ours.
//
// It owns the grammar (Parse), the options and what each of them means (Options), the words a statement is printed with
// (Statement.String), and the meaning of a statement: either a change of the configuration, which is a pure function of the
// configuration before (Statement.Change), or an operation that somebody else carries out (Statement.Kind). It knows no node, no
// store and no clock: what it returns is written by compare-and-swap, or not at all.
//
// Start reading at Parse, then the table in option.go, then Change in change.go.
package ddl
