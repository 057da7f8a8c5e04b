// Package benchcmd has the commands that measure: bench and its experiments.
//
// It parses flags and prints; what is measured is in the packages below bench.
package benchcmd
