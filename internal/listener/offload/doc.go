// Package offload relays sessions inside the kernel: an eBPF program passes simple requests and their answers from
// socket to socket, and leaves everything else to the event loop.
//
// It owns the program, its maps, one slot of shared memory per session, and the self-test that decides whether this
// kernel can be used. It says after how many answers a session is worth it (Patience), and looks at those that are
// offloaded (Watch). It must not know what a session is: its caller decides whether one may be offloaded now, and takes
// it back.
package offload
