package web

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestManyEventsAtOnce holds that a stream which gets many events at once, as the first one of an agent's life
// does, is not ended as one that reads slowly, and gets all of them.
func TestManyEventsAtOnce(t *testing.T) {
	t.Parallel()
	h := newHub(nil, nil)
	s, _, _, _ := h.enter("")
	var many []Event
	for i := range 10 * streamQueue {
		many = append(many, Event{Node: "n1", At: fmt.Sprintf("%06d", i), Kind: "link"})
	}
	h.add(many)
	if h.open() != 1 || h.dropped.Load() != 0 {
		t.Fatal("the stream was ended")
	}
	var got strings.Builder
	for len(s.out) > 0 {
		got.Write(<-s.out)
	}
	if n := strings.Count(got.String(), "event: event\n"); n != len(many) {
		t.Errorf("%d events, want %d", n, len(many))
	}
	if last := fmt.Sprintf("id: %s-%d\n", h.life, len(many)); !strings.Contains(got.String(), last) {
		t.Errorf("the last one has not %q", last)
	}
}

// TestStreamsOutliveAPanic holds that a bug in the look for the status or the events ends neither the node nor the
// streams.
func TestStreamsOutliveAPanic(t *testing.T) {
	t.Parallel()
	var status, events atomic.Int32
	s := New(Config{Logger: slog.New(slog.DiscardHandler)})
	s.hub = newHub(func() []byte {
		if status.Add(1) == 1 {
			panic("a bug")
		}
		return []byte(`{"epoch":1}`)
	}, func(context.Context) ([]Event, error) {
		if events.Add(1) == 1 {
			panic("a bug")
		}
		return []Event{{Node: "n1", At: "1", What: "it goes on"}}, nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.goesOn(ctx, "status", s.hub.run) })
	running.Go(func() { s.goesOn(ctx, "events", s.hub.runEvents) })
	defer func() { stop(); running.Wait() }()
	x, _, _, _ := s.hub.enter("")
	for all := ""; !strings.Contains(all, `{"epoch":1}`) || !strings.Contains(all, "it goes on"); {
		all += string(<-x.out)
	}
}

// TestQuietNode holds that an event is sent once, also if its node has told of nothing else while others told of more
// than a stream can resume from, and that what is remembered for that is bounded.
func TestQuietNode(t *testing.T) {
	t.Parallel()
	h := newHub(nil, nil)
	quiet := Event{Node: "n1", At: "000000"}
	const others = 2*maxRing + 10
	for i := range others {
		h.add([]Event{quiet, {Node: "n2", At: fmt.Sprintf("%06d", i+1)}})
	}
	if h.next != others+2 {
		t.Errorf("%d events, want %d", h.next-1, others+1)
	}
	if n := len(h.past); n > maxRing {
		t.Errorf("%d past events are remembered", n)
	}
}

// TestEveryAnswerIsJSON holds that a view or a query with a number that JSON does not have is answered with a document,
// and not with an empty body.
func TestEveryAnswerIsJSON(t *testing.T) {
	t.Parallel()
	b := serve(t, newGroup())
	b.logIn("vera")
	code, text, _ := b.do("POST", "/api/v1/query", `{"sql":"SELECT infinite"}`)
	if code != 200 || !strings.Contains(string(text), `"rows":[["Infinity",1.5]]`) {
		t.Errorf("%d %q", code, text)
	}
}
