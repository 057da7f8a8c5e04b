// Package lag bounds how far copies are behind the primary, without comparing the clocks of two nodes.
//
// It must not know sessions, or what becomes of a copy that is too far behind.
package lag
