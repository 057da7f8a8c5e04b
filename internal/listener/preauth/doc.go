// Package preauth bounds how many clients may be connected that have not authenticated, and decides which of them gives
// way to another one: a flood from one address evicts its own connections only.
//
// It must not know what a client says, or how its connection is ended.
package preauth
