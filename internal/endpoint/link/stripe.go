package link

// Where no controller stands loss, as BBR does, one connection is slow on a lossy way: each loss halves what it has under way. When there
// is much to send it is striped over several, which rarely lose at the same time, and the receiver puts the frames in order, as ever.

const (
	stripes     = 12        // TCP connections of such a link
	bulkQueue   = 128 << 10 // bytes under way from which frames take what is best for many
	stripeQueue = 256 << 10 // bytes under way on each stripe at most: what waits there cannot be overtaken
)

// carrier returns the leg for the next frame, and whether it is a stripe beside the main leg's writer; mu is held. When much is under way, a TCP
// leg with BBR is fastest, else the stripe with the least.
func (c *Conn) carrier() (best *leg, striped bool) {
	if c.main == nil || c.cost < bulkQueue || c.main.standsLoss() {
		return c.main, false
	}
	n := 0
	for _, l := range c.legs {
		switch {
		case l.Kind() != TCP:
			continue
		case l.standsLoss():
			return l, false
		case best == nil || l.under < best.under:
			best = l
		}
		n++
	}
	if n < stripes/2 {
		return c.main, false
	}
	return best, true
}

// full reports whether every stripe has as much under way as it may; mu is held.
func (c *Conn) full() bool {
	l, striped := c.carrier()
	return striped && l.under >= stripeQueue
}

// standsLoss reports whether the leg's controller does not take each loss for congestion.
func (l *leg) standsLoss() bool { return l.Kind() == TCP && l.bbr.Load() }

// put notes that the frame is under way on that leg, nil for none; Conn.mu is held.
func (f *frame) put(l *leg) {
	if f.leg != nil {
		f.leg.under -= len(f.buf)
	}
	if f.leg = l; l != nil {
		l.under += len(f.buf)
		l.carried += uint64(len(f.buf))
	}
}
