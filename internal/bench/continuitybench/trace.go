package continuitybench

import (
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/measure/session"
)

// request is one round trip. Times count from the load's origin.
type request struct {
	sent, done time.Duration
	ok         bool
}

// transaction is one transaction of a client.
type transaction struct {
	begun      time.Duration
	opened     time.Duration // BEGIN was answered; 0: it was not
	committing time.Duration // COMMIT was sent; 0: it was not
	done       time.Duration
	outcome    session.Outcome
	state      string // SQLSTATE, or a word
	dropped    bool   // its connection ended with it
}

// loss is the end of a connection that the client had not asked for.
type loss struct {
	at    time.Duration
	state string
}

// trace is what a client saw. Its methods are safe for concurrent use.
type trace struct {
	mu           sync.Mutex
	requests     []request     // guarded by mu
	transactions []transaction // guarded by mu
	losses       []loss        // guarded by mu
	failures     []loss        // guarded by mu: requests that were answered by an error, or not at all
}

func (t *trace) asked(r request) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests = append(t.requests, r)
}

func (t *trace) transacted(x transaction) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.transactions = append(t.transactions, x)
}

// failed notes an error of a request, and whether the connection ended with it.
func (t *trace) failed(at time.Duration, state string, dropped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, loss{at, state})
	if dropped {
		t.losses = append(t.losses, loss{at, state})
	}
}

// answeredSince reports whether a request that was sent after since was answered without an error.
func (t *trace) answeredSince(since time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(t.requests) - 1; i >= 0 && t.requests[i].sent >= since; i-- {
		if t.requests[i].ok {
			return true
		}
	}
	return false
}

// window is a part of a run.
type window struct{ from, to time.Duration }

func (w window) has(t time.Duration) bool { return t >= w.from && t <= w.to }

// hold returns the longest request that touches the window.
func (t *trace) hold(w window) (longest time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.requests {
		if r.sent <= w.to && r.done >= w.from {
			longest = max(longest, r.done-r.sent)
		}
	}
	return longest
}

// within returns the entries of a list in the window, by their states.
func within(list []loss, w window) (states []string) {
	for _, l := range list {
		if w.has(l.at) {
			states = append(states, l.state)
		}
	}
	return states
}

// lossesIn returns why connections ended in the window.
func (t *trace) lossesIn(w window) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return within(t.losses, w)
}

// failuresIn returns the errors of requests in the window.
func (t *trace) failuresIn(w window) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return within(t.failures, w)
}

// answersIn returns when requests were answered without an error in the window.
func (t *trace) answersIn(w window) (at []time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.requests {
		if r.ok && w.has(r.done) {
			at = append(at, r.done)
		}
	}
	return at
}

// openAt returns the transaction that was open, or was committing, at a moment.
func (t *trace) openAt(at time.Duration) (transaction, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.transactions {
		if x.opened > 0 && x.opened <= at && x.done > at {
			return x, true
		}
	}
	return transaction{}, false
}
