// Package socket reads and writes sockets with raw system calls, and keeps sockets that Go's runtime does not watch.
//
// It must not know messages or sessions, or who reads a socket and when.
package socket
