// Package eventloop runs many sockets in one goroutine, with raw system calls (docs/adr/0040-event-loops.md).
//
// It owns epoll, the functions that other goroutines post, and the writes that go to the kernel together at the end of
// a turn. It must not know what arrives: a Watcher reads its own socket.
package eventloop
