// Package buildinfo has the version of this program.
package buildinfo
