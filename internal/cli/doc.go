// Package cli has the helpers that all commands share: argument counts, exit codes, JSON, the terminal and the client
// of a node directory.
//
// The commands are in the packages below it. Only cmd/coterie imports those.
//
// Start reading at Report.
package cli
