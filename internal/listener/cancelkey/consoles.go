package cancelkey

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// Consoles are the cancel keys of console sessions.
type Consoles struct {
	mu   sync.Mutex // guards keys
	keys map[Key]chan struct{}
}

// Add mints a key of this node for a new session.
func (c *Consoles) Add(node uint8) (Key, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = map[Key]chan struct{}{}
	}
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		k := Key{PID: binary.BigEndian.Uint32(b[:4]) >> 1, Secret: uint32(node)<<28 | binary.BigEndian.Uint32(b[4:])>>4}
		if _, taken := c.keys[k]; !taken {
			c.keys[k] = make(chan struct{}, 1)
			return k, c.keys[k]
		}
	}
}

// Remove forgets the key of a session.
func (c *Consoles) Remove(k Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, k)
}

// Cancel asks the session of that key to cancel its statement. It reports false if no such session exists.
func (c *Consoles) Cancel(k Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ask, ok := c.keys[k]
	if ok {
		select {
		case ask <- struct{}{}:
		default: // a request is pending already
		}
	}
	return ok
}
