// Package cli is what every command shares: argument counts, exit codes, JSON, the terminal and the client of a node directory.
//
// The commands themselves are in the packages below it; nothing but the program imports those.
//
// Start reading at Report.
package cli
