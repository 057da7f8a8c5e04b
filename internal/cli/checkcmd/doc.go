// Package checkcmd has the commands that look for problems: check, its preflight before a group exists, and its
// subcommands.
//
// The probes are in package check.
package checkcmd
