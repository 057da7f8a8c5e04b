package link

import "sync"

// Estimator keeps the bandwidth that links to each peer had, so that the next link begins with it. The zero value is
// empty; nil keeps nothing.
type Estimator struct {
	mu    sync.Mutex
	rates map[string]float64 // bytes per second
}

const maxPeers = 64 // peers

// Rate returns the bytes per second that the peer acknowledged while a link to it was full; 0: no link was.
func (f *Estimator) Rate(peer string) int64 {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(f.rates[peer])
}

// note records a bandwidth sample taken while the link was full. Higher samples replace the estimate at once; lower
// ones, which may be cross traffic, decay it slowly.
func (f *Estimator) note(peer string, rate float64) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old, known := f.rates[peer]
	if f.rates == nil {
		f.rates = make(map[string]float64)
	}
	if !known && len(f.rates) >= maxPeers {
		return
	}
	if known && rate < old {
		rate = old + (rate-old)/16
	}
	f.rates[peer] = rate
}

// busy measures how full a link was since the last heartbeat; Conn.mu guards it.
type busy struct {
	least     int    // bytes under way
	delivered uint64 // bytes acknowledged
}
