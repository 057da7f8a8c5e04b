// Package sqlrun has the command that runs scripts and statements on a node's console, interactively or not, and prints
// their results as tables.
package sqlrun
