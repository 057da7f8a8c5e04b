package linkem

// packet is under way from one port to another.
type packet struct {
	due     nanos
	order   uint64 // of sending: settles equal due times
	left    nanos
	path    *path
	home    *pool
	slot    []byte // as large as the pool makes them
	b       []byte // the bytes to write, a part of slot
	packets int    // in it; see burst
	size    int    // their bytes on the wire
	ordered bool
}

func (q *packet) before(r *packet) bool {
	return q.due < r.due || q.due == r.due && q.order < r.order
}

// agenda holds packets by due time, in a binary heap. It is written out since this is the one structure that every
// packet of a delayed link goes through; most arrive in order, which makes push cheap.
type agenda []*packet

func (a *agenda) push(q *packet) {
	*a = append(*a, q)
	h := *a
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !q.before(h[up]) {
			break
		}
		h[i], i = h[up], up
	}
	h[i] = q
}

func (a *agenda) pop() *packet {
	h := *a
	first, moved := h[0], h[len(h)-1]
	h[len(h)-1] = nil
	h = h[:len(h)-1]
	*a = h
	if len(h) == 0 {
		return first
	}
	h[0] = moved
	h.sink(0)
	return first
}

func (a agenda) sink(i int) {
	q := a[i]
	for {
		down := 2*i + 1
		if down >= len(a) {
			break
		}
		if right := down + 1; right < len(a) && a[right].before(a[down]) {
			down = right
		}
		if !a[down].before(q) {
			break
		}
		a[i], i = a[down], down
	}
	a[i] = q
}

// heal restores the order after due times have changed.
func (a agenda) heal() {
	for i := len(a)/2 - 1; i >= 0; i-- {
		a.sink(i)
	}
}

// pool recycles packets within one thread, so that nothing is allocated, hence nothing collected, per packet.
type pool struct {
	size int
	free []*packet
}

func (p *pool) get() *packet {
	if n := len(p.free); n > 0 {
		q := p.free[n-1]
		p.free = p.free[:n-1]
		return q
	}
	const chunk = 64
	slots, packets := make([]byte, chunk*p.size), make([]packet, chunk)
	for i := range packets {
		packets[i].home, packets[i].slot = p, slots[i*p.size:(i+1)*p.size:(i+1)*p.size]
		p.free = append(p.free, &packets[i])
	}
	return p.get()
}

func (p *pool) put(q *packet) {
	q.path, q.b = nil, nil
	p.free = append(p.free, q)
}
