// Package ddl is the availability-group language: CREATE, ALTER and DROP AVAILABILITY GROUP as administrators know
// them, and ours.
//
// It owns the grammar (Parse), the options and their meaning (Options), the canonical text of a statement
// (Statement.String), and the effect of a statement. That is either a change of the configuration, as a pure function
// of the previous one (Statement.Change), or an operation that the caller carries out (Statement.Kind). It knows no
// node, no store and no clock: the caller writes the configuration that it returns by compare-and-swap, or not at all.
//
// Start reading at Parse, then the table in option.go, then Change in change.go.
package ddl
