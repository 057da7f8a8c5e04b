// Package clitest has what tests of commands need: a fake of a node's agent behind its management socket, and a way to
// run a command as the program does.
//
// It must not know any command. Start reading at Agent and Run.
package clitest
