// Package guessing makes guessing passwords slow: each failed login delays those that come after it, of the same name
// from the same address, and of any name from an address with many failures. It also bounds the lines about them in the
// log.
//
// It must not know how a client proves who it is, or how an attempt waits.
package guessing
