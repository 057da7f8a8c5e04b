// Package labcmd has the commands that run a group on this machine: lab and demo.
package labcmd
