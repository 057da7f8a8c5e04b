// Package nodecmd has the commands of one node: init (also for adoption), join, witness, release, agent and config.
//
// It parses and prints; package provision makes directories and package node runs them.
package nodecmd
