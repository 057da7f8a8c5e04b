// Package buildinfo says which build this program is.
package buildinfo
