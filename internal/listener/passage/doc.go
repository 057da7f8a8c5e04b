// Package passage is what becomes of each chunk of bytes between a client and its server: which of it goes on, what
// goes before or behind it, and what its messages say of the session. It is the same on goroutines, on event loops, and
// for what the kernel has relayed.
//
// It must not know sockets, or wait: who carries the bytes does. Start reading at Passage.Release and Passage.Advance.
package passage
