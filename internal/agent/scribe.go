package agent

import (
	"log/slog"
	"time"
)

// scribe writes beside the loop what nobody waits for: on a dead disk the loop must go on deciding. What does not fit into its queue is
// not written.
type scribe struct {
	jobs chan func() error
	done chan struct{}
	log  *slog.Logger
}

const (
	scribeQueue = 256
	scribeLimit = time.Second // a disk that hangs does not keep the agent from ending
)

// newScribe returns a scribe that begins to write with start and ends with close.
func newScribe(log *slog.Logger) *scribe {
	return &scribe{jobs: make(chan func() error, scribeQueue), done: make(chan struct{}), log: log}
}

func (s *scribe) start() { go s.run() } // awaited by close

func (s *scribe) run() {
	defer close(s.done)
	for job := range s.jobs {
		if err := job(); err != nil {
			s.log.Warn("not written down", "err", err)
		}
	}
}

// do queues a job. Only the loop calls it, and never after close.
func (s *scribe) do(job func() error) {
	select {
	case s.jobs <- job:
	default:
		s.log.Warn("not written down: the disk does not keep up")
	}
}

// close waits for what is queued, but not for a disk that hangs.
func (s *scribe) close() {
	close(s.jobs)
	select {
	case <-s.done:
	case <-time.After(scribeLimit):
	}
}
