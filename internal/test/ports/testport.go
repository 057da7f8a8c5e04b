// Package ports gives tests TCP ports that no other process takes before they are used. Only tests import it.
//
// A port that is free when a test looks can be taken before a program opens it. It can be taken by an outgoing
// connection, if the kernel gives the port to those, by another test process that looked at the same moment, or by the
// same test, which drew it twice. So ports are drawn here from blocks below the kernel's range. A block belongs to one
// process of the machine as long as that lives, and a process gets no port twice before it has got all of its block.
package ports

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Blocks of ports, all below 32768, where Linux begins to take those of outgoing connections (ip_local_port_range in
// ip(7)).
const (
	first     = 10000
	blockSize = 100
	blocks    = 220
)

// drawn is what this process has.
var drawn struct {
	sync.Mutex
	claims []net.Listener // hold the blocks until the process ends
	own    []int          // the first port of each block
	block  int            // which of own is drawn from
	used   int            // ports drawn from it
}

// One returns a port of 127.0.0.1.
func One(t testing.TB) int {
	t.Helper()
	return Range(t, 1)
}

// Address returns a port of 127.0.0.1 as address:port.
func Address(t testing.TB) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(One(t)))
}

// Range returns the first of n ports that follow each other, at most as many as a block has. It fails the test if there
// are none.
func Range(t testing.TB, n int) int {
	t.Helper()
	if n > blockSize {
		t.Fatalf("%d ports: a block has %d", n, blockSize)
	}
	drawn.Lock()
	defer drawn.Unlock()
	for range blocks * blockSize {
		if len(drawn.own) == 0 || drawn.used+n > blockSize {
			nextBlock(t)
		}
		port := drawn.own[drawn.block] + drawn.used
		drawn.used += n
		if free(port, n) {
			return port
		}
	}
	t.Fatalf("no %d free ports from %d to %d", n, first, first+blocks*blockSize-1)
	return 0
}

// nextBlock claims another block or, if all are taken, goes round those that the process has.
func nextBlock(t testing.TB) {
	t.Helper()
	drawn.used = 0
	for b := range blocks {
		port := first + b*blockSize
		// A name in the abstract namespace is the claim: it goes with its process, however that ends, and leaves no
		// file (unix(7)).
		claim, err := net.Listen("unix", fmt.Sprintf("@coterie-test-ports-%d", port)) //nolint:noctx // it does not wait
		if err != nil {
			continue
		}
		drawn.claims, drawn.own = append(drawn.claims, claim), append(drawn.own, port)
		drawn.block = len(drawn.own) - 1
		return
	}
	if len(drawn.own) == 0 {
		t.Fatal("all blocks of test ports belong to other processes")
	}
	drawn.block = (drawn.block + 1) % len(drawn.own)
}

// free reports whether nothing listens on any of n ports, on any address.
func free(port, n int) bool {
	for i := range n {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port+i)) //nolint:noctx // it does not wait
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
