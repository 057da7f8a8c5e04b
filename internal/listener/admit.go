package listener

// enterPreAuth counts the client among those that have not proved who they are. With limit it is refused when there are
// too many; a client that comes back from waiting for a primary is not.
func (c *client) enterPreAuth(limit bool) bool {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit && s.preAuth >= s.cfg.Limits.PreAuth {
		return false
	}
	if !c.preAuth {
		c.preAuth = true
		s.preAuth++
	}
	return true
}

func (c *client) leavePreAuth() {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	if c.preAuth {
		c.preAuth = false
		c.srv.preAuth--
	}
}

// count takes a place among the sessions. Cancel requests never need one, so a full server can still be helped.
func (c *client) count() *pgError {
	s, limits := c.srv, c.srv.cfg.Limits
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open >= limits.Connections {
		return fatal("connection limit", stateTooMany, "sorry, too many clients already")
	}
	if limits.PerAddress > 0 && s.perAddress[c.host] >= limits.PerAddress {
		return fatal("address limit", stateTooMany, "too many connections from this address")
	}
	s.open++
	s.perAddress[c.host]++
	c.counted = true
	return nil
}

// release gives back what the client was counted under.
func (c *client) release() {
	c.leavePreAuth()
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.counted {
		return
	}
	s.open--
	if s.perAddress[c.host]--; s.perAddress[c.host] <= 0 {
		delete(s.perAddress, c.host)
	}
}
