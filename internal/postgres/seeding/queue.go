package seeding

import (
	"container/heap"
	"sync"

	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// item is one chunk to be settled.
type item struct {
	file, chunk int
}

// stretchChunks is the number of chunks of a file that a connection requests in a row. A file is not opened for each,
// and the chunks under way are still a sample of the whole, which AUTO needs for its choice.
const stretchChunks = 4

// stretch is a connection's part of the queue: consecutive chunks of one file.
type stretch struct {
	file, at, end int
}

// queue hands out the chunks of all files so that they advance together, each in proportion to its size, the biggest
// first. Tables that compress well travel beside indexes that do not until the end: neither link nor processors wait
// for the other. When a copy is interrupted, the settled share of the bytes of files is also about the share of the
// network traffic.
type queue struct {
	mu      sync.Mutex
	files   []wire.File
	strands strands
	again   []item // requested, and not answered before the connection was lost
}

// strand is a long file, or all short ones one after another in the order of the list, where a table is beside its
// indexes.
type strand struct {
	files       []int // the remaining ones, by their indexes; the first may be begun
	chunk       int   // of the first, to be handed out next
	size, taken int64 // bytes
}

// where returns the middle of the next stretch, as a part of the whole strand.
func (s *strand) where(files []wire.File) float64 {
	first := files[s.files[0]]
	next := min(first.Size-int64(s.chunk)*wire.ChunkSize, stretchChunks*wire.ChunkSize)
	return (float64(s.taken) + float64(next)/2) / float64(s.size)
}

// strands is a heap (heap.Interface) of the unfinished strands, by their progress.
type strands struct {
	all   []*strand
	files []wire.File
}

func (s *strands) Len() int      { return len(s.all) }
func (s *strands) Swap(i, j int) { s.all[i], s.all[j] = s.all[j], s.all[i] }
func (s *strands) Push(x any)    { s.all = append(s.all, x.(*strand)) }

func (s *strands) Less(i, j int) bool {
	a, b := s.all[i], s.all[j]
	if x, y := a.where(s.files), b.where(s.files); x != y {
		return x < y
	}
	return a.files[0] < b.files[0]
}

func (s *strands) Pop() any {
	last := s.all[len(s.all)-1]
	s.all = s.all[:len(s.all)-1]
	return last
}

func newQueue(files []wire.File, skip func(wire.File) bool) *queue {
	q := &queue{files: files, strands: strands{files: files}}
	short := &strand{}
	for i, f := range files {
		switch {
		case f.Dir || f.Size == 0 || skip(f):
		case f.Chunks() > stretchChunks:
			q.strands.Push(&strand{files: []int{i}, size: f.Size})
		default:
			short.files, short.size = append(short.files, i), short.size+f.Size
		}
	}
	if len(short.files) > 0 {
		q.strands.Push(short)
	}
	heap.Init(&q.strands)
	return q
}

// next returns a chunk for a connection: of its own stretch, or of a new one, which becomes its own.
func (q *queue) next(own *stretch) (item, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.again); n > 0 {
		it := q.again[n-1]
		q.again = q.again[:n-1]
		return it, true
	}
	if own.at == own.end {
		if q.strands.Len() == 0 {
			return item{}, false
		}
		*own = q.begin()
	}
	it := item{own.file, own.at}
	own.at++
	return it, true
}

// begin takes the next stretch off the strand that is furthest behind. q.mu is held.
func (q *queue) begin() stretch {
	l := q.strands.all[0]
	f := q.files[l.files[0]]
	r := stretch{l.files[0], l.chunk, min(l.chunk+stretchChunks, f.Chunks())}
	l.taken += min(int64(r.end)*wire.ChunkSize, f.Size) - int64(r.at)*wire.ChunkSize
	if l.chunk = r.end; r.end == f.Chunks() {
		l.files, l.chunk = l.files[1:], 0
	}
	if len(l.files) == 0 {
		heap.Pop(&q.strands)
	} else {
		heap.Fix(&q.strands, 0)
	}
	return r
}

// putBack returns a connection's unfinished work: its stretch, and chunks that were requested and not settled.
func (q *queue) putBack(own *stretch, items ...item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; own.at < own.end; own.at++ {
		q.again = append(q.again, item{own.file, own.at})
	}
	q.again = append(q.again, items...)
}
