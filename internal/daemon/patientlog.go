package daemon

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// patientLog writes behind the back of whoever logs: on a dead disk a write does not return, and who decides must not wait for it. What
// does not fit into its queue is counted, and the count written when there is room again.
type patientLog struct {
	to    io.Writer
	lines chan []byte
	done  chan struct{}

	mu   sync.Mutex // guards what follows, and sending on lines
	lost int
	over bool
}

const (
	logQueue = 4096
	logLimit = time.Second // a disk that hangs does not keep the agent from ending
)

func newPatientLog(to io.Writer) *patientLog {
	p := &patientLog{to: to, lines: make(chan []byte, logQueue), done: make(chan struct{})}
	go p.write() // ends with Close
	return p
}

func (p *patientLog) write() {
	defer close(p.done)
	for line := range p.lines {
		_, _ = p.to.Write(line) // there is nowhere to say that the log cannot be written
	}
}

// Write queues a line. It never blocks and never fails.
func (p *patientLog) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return len(line), nil
	}
	if p.lost > 0 && len(p.lines) < logQueue/2 {
		p.lines <- []byte(fmt.Sprintf("level=ERROR msg=\"lines of this log are lost: the disk did not keep up\" lines=%d\n", p.lost))
		p.lost = 0
	}
	select {
	case p.lines <- append([]byte(nil), line...):
	default:
		p.lost++
	}
	return len(line), nil
}

// Close writes what is queued, unless the disk hangs.
func (p *patientLog) Close() {
	p.mu.Lock()
	if !p.over {
		p.over = true
		close(p.lines)
	}
	p.mu.Unlock()
	select {
	case <-p.done:
	case <-time.After(logLimit):
	}
}
