// Package groupcmd has the commands that look at the group or change it through a node's agent, and those that recover
// it without one.
//
// It parses and prints; the agent carries out the requests.
package groupcmd
