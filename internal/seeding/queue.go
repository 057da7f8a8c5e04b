package seeding

import (
	"slices"
	"sync"
)

// item is one chunk to be settled.
type item struct {
	file, chunk int
}

// queue hands out the chunks of all files, those of the biggest file first: what is left at the end is small. Chunks of one file
// come in their order, which reads well on both sides.
type queue struct {
	mu    sync.Mutex
	files []file
	order []int  // indexes of files, biggest first
	at    int    // in order
	chunk int    // of order[at]
	again []item // asked for, and not answered before the connection was lost
}

func newQueue(files []file, skip func(file) bool) *queue {
	q := &queue{files: files}
	for i, f := range files {
		if !f.Dir && f.Size > 0 && !skip(f) {
			q.order = append(q.order, i)
		}
	}
	slices.SortStableFunc(q.order, func(a, b int) int {
		switch {
		case files[a].Size > files[b].Size:
			return -1
		case files[a].Size < files[b].Size:
			return 1
		}
		return 0
	})
	return q
}

func (q *queue) next() (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.again); n > 0 {
		it := q.again[n-1]
		q.again = q.again[:n-1]
		return it, true
	}
	if q.at == len(q.order) {
		return item{}, false
	}
	it := item{q.order[q.at], q.chunk}
	if q.chunk++; q.chunk == q.files[it.file].chunks() {
		q.at, q.chunk = q.at+1, 0
	}
	return it, true
}

// putBack returns chunks that were not settled.
func (q *queue) putBack(items ...item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.again = append(q.again, items...)
}
