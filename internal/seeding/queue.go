package seeding

import (
	"slices"
	"sync"
)

// item is one chunk to be settled.
type item struct {
	file, chunk int
}

// queue hands out the chunks of all files. Each connection takes a file of its own, the biggest that nobody has, chunk by chunk, which
// reads and writes well; when all that have several chunks are taken it helps with the one of which most is left on the wire. So what shrinks
// well and what does not travel beside each other until the end, and what is left then is small: the files of one chunk.
type queue struct {
	mu    sync.Mutex
	files []file
	order []int  // indexes of files, biggest first
	at    int    // in order: what was not begun
	begun []int  // files of which something is left
	chunk []int  // by file: the chunk to be handed out next
	long  []int  // by file: how long a chunk of it was on the wire, lately
	again []item // asked for, and not answered before the connection was lost
}

func newQueue(files []file, skip func(file) bool) *queue {
	q := &queue{files: files, chunk: make([]int, len(files)), long: make([]int, len(files))}
	for i, f := range files {
		q.long[i] = chunkSize
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

// nobody is the file of a connection that has none yet.
const nobody = -1

// next returns a chunk for a connection whose last one was of file own.
func (q *queue) next(own int) (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.again); n > 0 {
		it := q.again[n-1]
		q.again = q.again[:n-1]
		return it, true
	}
	i := q.choose(own)
	if i == nobody {
		return item{}, false
	}
	it := item{i, q.chunk[i]}
	if q.chunk[i]++; q.left(i) == 0 {
		q.begun = slices.DeleteFunc(q.begun, func(j int) bool { return j == i })
	}
	return it, true
}

// choose returns the file to go on with. q.mu is held.
func (q *queue) choose(own int) int {
	if slices.Contains(q.begun, own) {
		return own
	}
	small := q.at == len(q.order) || q.files[q.order[q.at]].chunks() == 1
	if small && len(q.begun) > 0 {
		return slices.MaxFunc(q.begun, func(a, b int) int { return q.left(a)*q.long[a] - q.left(b)*q.long[b] })
	}
	if q.at == len(q.order) {
		return nobody
	}
	i := q.order[q.at]
	q.at++
	q.begun = append(q.begun, i)
	return i
}

func (q *queue) left(i int) int { return q.files[i].chunks() - q.chunk[i] }

// weigh notes how long a chunk of that file was on the wire.
func (q *queue) weigh(file, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.long[file] = max(n, 1)
}

// putBack returns chunks that were not settled.
func (q *queue) putBack(items ...item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.again = append(q.again, items...)
}
