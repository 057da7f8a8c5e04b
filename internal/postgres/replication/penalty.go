package replication

import (
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

const (
	maxMarks      = 4096        // blocks of WAL in flight; more are not measured
	penaltyWindow = time.Minute // the least time that percentiles cover; the most is twice that
)

// Penalty measures the cost of synchronous commits. For each block of WAL it takes the time from its sending to the
// first stream until as many members have flushed it as a commit waits for. The wait of a commit is that of the block
// that ends with it. The methods may be called from several goroutines.
type Penalty struct {
	inForce func() (members []ag.ReplicaID, k int)

	mu      sync.Mutex // guards all below
	marks   []mark     // by position
	last    ag.LSN
	flushed map[ag.ReplicaID]ag.LSN
	total   PenaltyTotals
	began   time.Duration // of the newer window
	windows [2]*hdrhistogram.Histogram
}

// mark is the end of a block of WAL, and when it was sent.
type mark struct {
	end ag.LSN
	at  time.Duration
}

// PenaltyTotals are sums since the agent started, and percentiles of the last minute or two.
type PenaltyTotals struct {
	Blocks        uint64
	Waited, Max   time.Duration
	P50, P95, P99 time.Duration
	Mean          time.Duration // of the same minutes
}

// NewPenalty returns a measure for a primary whose commits wait for k of the members that sync returns. With k = 0
// nothing is measured.
func NewPenalty(syncNow func() (members []ag.ReplicaID, k int)) *Penalty {
	p := &Penalty{inForce: syncNow, flushed: map[ag.ReplicaID]ag.LSN{}, began: boottime.Now()}
	for i := range p.windows {
		p.windows[i] = hdrhistogram.New(1, time.Minute.Microseconds(), 2)
	}
	return p
}

// sent records that WAL up to end was sent to a member at now.
func (p *Penalty) sent(now time.Duration, end ag.LSN) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if end > p.last && len(p.marks) < maxMarks {
		p.marks = append(p.marks, mark{end, now})
		p.last = end
	}
}

// acknowledged records how far a member had flushed, by a message received at now.
func (p *Penalty) acknowledged(now time.Duration, member ag.ReplicaID, flush ag.LSN) {
	if p == nil {
		return
	}
	members, k := p.inForce()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushed[member] = flush
	safe := kth(p.flushed, members, k)
	n := 0
	for n < len(p.marks) && p.marks[n].end <= safe {
		n++
	}
	if n == 0 {
		return
	}
	if k > 0 {
		p.turnLocked(now)
		for _, m := range p.marks[:n] {
			p.countLocked(now - m.at)
		}
	}
	p.marks = append(p.marks[:0], p.marks[n:]...)
}

// kth returns how far at least k of the members have flushed; with k = 0, how far any has.
func kth(flushed map[ag.ReplicaID]ag.LSN, members []ag.ReplicaID, k int) ag.LSN {
	var at []ag.LSN
	for id, l := range flushed {
		if k == 0 || slices.Contains(members, id) {
			at = append(at, l)
		}
	}
	slices.Sort(at)
	if k = max(k, 1); len(at) < k {
		return 0
	}
	return at[len(at)-k]
}

func (p *Penalty) countLocked(d time.Duration) {
	p.total.Blocks++
	p.total.Waited += d
	p.total.Max = max(p.total.Max, d)
	_ = p.windows[0].RecordValue(min(max(d.Microseconds(), 1), time.Minute.Microseconds())) // within bounds
}

// turnLocked begins a new window if the newer one is full.
func (p *Penalty) turnLocked(now time.Duration) {
	switch age := now - p.began; {
	case age < penaltyWindow:
		return
	case age < 2*penaltyWindow:
		p.windows[0], p.windows[1] = p.windows[1], p.windows[0]
	default:
		p.windows[1].Reset()
	}
	p.windows[0].Reset()
	p.began = now
}

// Totals returns the measurements so far.
func (p *Penalty) Totals() PenaltyTotals {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turnLocked(boottime.Now())
	both := hdrhistogram.New(1, time.Minute.Microseconds(), 2)
	both.Merge(p.windows[0])
	both.Merge(p.windows[1])
	t := p.total
	at := func(q float64) time.Duration { return time.Duration(both.ValueAtQuantile(q)) * time.Microsecond }
	if both.TotalCount() > 0 {
		t.P50, t.P95, t.P99, t.Mean = at(50), at(95), at(99), time.Duration(both.Mean()*1000)
	}
	return t
}

// forget drops the blocks in flight: the streams belong to an earlier role.
func (p *Penalty) forget() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marks, p.last = nil, 0
	clear(p.flushed)
}
