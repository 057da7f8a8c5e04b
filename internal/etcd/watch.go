package etcd

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// watchStream is a watch at one endpoint, to be cancelled when that endpoint fails.
type watchStream struct {
	endpoint string
	cancel   context.CancelFunc
}

const (
	watchPauseMin = 50 * time.Millisecond
	watchPauseMax = time.Second
	// watchSteady is how long a stream must live for its end not to count as a failure of the endpoint.
	watchSteady = 5 * time.Second
)

// Watch sends an Event when something below the group's prefix may have changed: merged while the receiver is busy, and
// with everything set after each (re)connection. It is a hint only: events can be late, repeated, and missing for as
// long as a dead connection stays unnoticed. The channel closes when ctx ends or the Store is closed.
func (s *Store) Watch(ctx context.Context) <-chan Event {
	out := make(chan Event)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Err() != nil {
		close(out)
		return out
	}
	s.wg.Add(2)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.closed, cancel)
	hints := make(chan Event, 64)
	go func() {
		defer s.wg.Done()
		defer stop()
		defer cancel()
		defer close(hints)
		s.follow(ctx, hints)
	}()
	go func() {
		defer s.wg.Done()
		defer close(out)
		merge(ctx, hints, out)
	}()
	return out
}

// merge forwards hints, one Event at a time, and merges those that come while the receiver is busy. It reads hints
// until they are closed, so that the sender never blocks.
func merge(ctx context.Context, hints <-chan Event, out chan<- Event) {
	var pending Event
	for {
		var send chan<- Event
		if !pending.Empty() && ctx.Err() == nil {
			send = out
		}
		select {
		case e, ok := <-hints:
			if !ok {
				return
			}
			pending.add(e)
		case send <- pending:
			pending = Event{}
		}
	}
}

// follow keeps one stream open, at the best endpoint it can find, until ctx ends.
func (s *Store) follow(ctx context.Context, hints chan<- Event) {
	pause := watchPauseMin
	for ctx.Err() == nil {
		endpoint := s.order()[0]
		began := time.Now()
		err := s.watchAt(ctx, endpoint, hints)
		if ctx.Err() != nil {
			return
		}
		s.log.Debug("watch ended", "endpoint", endpoint, "error", err)
		if time.Since(began) >= watchSteady {
			pause = watchPauseMin
		} else {
			s.fell(endpoint)
		}
		_ = retry.Sleep(ctx, pause)
		pause = min(2*pause, watchPauseMax)
	}
}

func (s *Store) watchAt(ctx context.Context, endpoint string, hints chan<- Event) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := &watchStream{endpoint: endpoint, cancel: cancel}
	s.mu.Lock()
	s.watches[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watches, w)
		s.mu.Unlock()
	}()
	// A stream that is not established in time leads to an address that drops packets.
	unconnected := time.AfterFunc(maxDialTime, cancel)
	defer unconnected.Stop()
	connected := func() {
		unconnected.Stop()
		hints <- Event{Record: true, Group: true, Op: true, Status: true}
	}
	return s.back.watch(ctx, endpoint, s.keys.prefix, connected, func(changed []kv) {
		if e := s.keys.event(changed); !e.Empty() {
			hints <- e
		}
	})
}

// event returns the event for changed keys; a key without a value was deleted.
func (k keys) event(changed []kv) (e Event) {
	for _, c := range changed {
		switch c.key {
		case k.epoch, k.state:
			e.Record = true
		case k.lead:
			e.renewal(c)
		case k.config:
			e.Group = true
		case k.op:
			e.Op = true
		default:
			if id, ok := strings.CutPrefix(c.key, k.status); ok {
				e.report(ag.ReplicaID(id), c)
			}
			e.Record = e.Record || strings.HasPrefix(c.key, k.vote)
		}
	}
	return e
}

func (e *Event) renewal(c kv) {
	r := Renewal{Rev: c.rev}
	if c.value == nil || decode(c, maxRecordBytes, &r.Lead) != nil {
		e.Record = true
		return
	}
	e.Renewal = &r
}

func (e *Event) report(id ag.ReplicaID, c kv) {
	value, err := readRaw(c, maxStatusBytes)
	if c.value == nil || err != nil || checkID(id, false) != nil || len(e.Reports) >= maxStatuses {
		e.Status = true
		return
	}
	if e.Reports == nil {
		e.Reports = map[ag.ReplicaID]json.RawMessage{}
	}
	e.Reports[id] = value
}
