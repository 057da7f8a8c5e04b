// Package benchcmd has the commands that measure: bench and its experiments.
//
// It parses flags and prints. The measurements are in the packages below bench.
package benchcmd
