// Package nodecmd has the commands of one node: init, join, witness, adopt, release, agent, config and restart.
//
// It parses and prints; package provision makes directories and package node runs them.
package nodecmd
