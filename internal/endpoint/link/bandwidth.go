package link

import "sync"

// Found remembers what links to each peer were found to carry, so that the next one begins with that. The zero value is empty; nil
// remembers nothing.
type Estimator struct {
	mu    sync.Mutex
	rates map[string]float64 // bytes per second
}

const maxPeers = 64 // peers

// Rate returns the bytes per second that went to the peer when there was more to send than went; 0: it never happened.
func (f *Estimator) Rate(peer string) int64 {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(f.rates[peer])
}

// note takes a rate at which a link was full. What is higher counts at once; what is lower, which may be another one's traffic, slowly.
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

// busy is how full a link was since the last heartbeat; Conn.mu guards it.
type busy struct {
	least     int    // bytes under way
	delivered uint64 // bytes acknowledged
}
