// Package asyncwriter performs best-effort writes on a goroutine of its own. A write to a hung disk does not return,
// and the goroutine that decides must not wait for it.
//
// It owns bounded queues. A job that does not fit is dropped, and the result says so or the loss is counted. Start
// reading at Queue; Writer is an io.Writer on the same principle.
package asyncwriter

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// closeLimit is how long Close waits: a disk that hangs does not keep the process from ending.
const closeLimit = time.Second

// Queue runs jobs one after the other on a goroutine of its own. Its methods may be called by several goroutines.
type Queue struct {
	jobs chan func()
	done chan struct{}

	mu     sync.Mutex // guards closed, and sending on jobs
	closed bool
}

// NewQueue returns a queue that holds at most that many jobs. Start begins to run them.
func NewQueue(size int) *Queue {
	return &Queue{jobs: make(chan func(), size), done: make(chan struct{})}
}

// Start begins to run jobs. It is called once; the goroutine ends after Close.
func (q *Queue) Start() {
	go func() {
		defer close(q.done)
		for job := range q.jobs {
			job()
		}
	}()
}

// Do queues a job. It never blocks, and reports false if the job is dropped, because the queue is full or closed.
func (q *Queue) Do(job func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	select {
	case q.jobs <- job:
		return true
	default:
		return false
	}
}

// Close waits for the queued jobs of a queue that was started, for at most a second. Later jobs are dropped.
func (q *Queue) Close() {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.jobs)
	}
	q.mu.Unlock()
	select {
	case <-q.done:
	case <-time.After(closeLimit):
	}
}

// room reports whether the queue is at most half full.
func (q *Queue) room() bool { return len(q.jobs) <= cap(q.jobs)/2 }

// Writer is an io.Writer of lines that never blocks and never fails. Lines that do not fit into its queue are counted,
// and the count is written when there is room again.
type Writer struct {
	to    io.Writer
	lost  func(n int) string
	queue *Queue

	mu    sync.Mutex // guards count
	count int
}

// NewWriter returns a writer to to, whose queue holds that many lines. The text of lost says, as a line of the same
// log, that n lines are missing. The caller closes the writer.
func NewWriter(to io.Writer, size int, lost func(n int) string) *Writer {
	w := &Writer{to: to, lost: lost, queue: NewQueue(size)}
	w.queue.Start()
	return w
}

// Write queues a copy of the line.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.count > 0 && w.queue.room() && w.put(fmt.Appendln(nil, w.lost(w.count))) {
		w.count = 0
	}
	if !w.put(append([]byte(nil), line...)) {
		w.count++
	}
	return len(line), nil
}

func (w *Writer) put(line []byte) bool {
	return w.queue.Do(func() { _, _ = w.to.Write(line) }) // there is nowhere to report that the log cannot be written
}

// Close writes the queued lines, unless the disk hangs. Later lines are dropped.
func (w *Writer) Close() { w.queue.Close() }
