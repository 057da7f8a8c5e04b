// Package events has the events of a node as its administrator's receivers are told of them: each of them once.
//
// It owns the document that a receiver reads, and which events are new. It must not know what an event means, or where
// it goes.
//
// Start reading at Feed.
package events

import (
	"context"
	"log/slog"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Event is the document that a receiver reads.
type Event struct {
	Group   string    `json:"group"`
	Node    string    `json:"node"`
	At      time.Time `json:"at"` // by the node's own clock
	Epoch   ag.Epoch  `json:"epoch,omitempty"`
	Kind    string    `json:"kind"`
	What    string    `json:"what"`
	Because string    `json:"because,omitempty"`
}

// Feed yields each event of a node once. One goroutine uses it.
type Feed struct {
	list func() []Event
	told map[Event]bool
}

// NewFeed returns a feed of the events that list returns from now on. list returns those that the node remembers, from
// memory, the oldest first; the present ones are old. No clock decides that: it may be set back.
func NewFeed(list func() []Event) *Feed {
	f := &Feed{list: list}
	f.Next()
	return f
}

// Next returns the events that are new since the last call, the oldest first.
func (f *Feed) Next() (fresh []Event) {
	known := map[Event]bool{}
	for _, e := range f.list() {
		e.At = e.At.Round(0).UTC() // two readings of one event are equal
		if !known[e] && !f.told[e] {
			fresh = append(fresh, e)
		}
		known[e] = true
	}
	f.told = known
	return fresh
}

// lookEvery is how often Log looks for events.
const lookEvery = time.Second

// Log returns a part of a node that writes each event of list to a log until its context is done, as a record with the
// event's parts as attributes. list is as NewFeed has it.
func Log(list func() []Event, log *slog.Logger) func(context.Context) error {
	feed := NewFeed(list)
	look := func() {
		for _, e := range feed.Next() {
			log.Info(e.What, //nolint:sloglint // the event is the message
				"event", e.Kind, "group", e.Group, "node", e.Node, "epoch", uint64(e.Epoch), "because", e.Because, "at", e.At.Format(time.RFC3339Nano))
		}
	}
	return func(ctx context.Context) error {
		retry.Every(ctx, lookEvery, look)
		look() // what happened while the node ended
		return nil
	}
}
