package webhooks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/events"
)

// How often it is looked for events, for how long what waits is sent after the node has ended, and how long a try may
// then take to notice that this time is over.
const (
	lookEvery  = time.Second
	lingerTime = 2 * time.Second
	stallTime  = time.Second
)

// Sender posts events to the receivers. Make it with New.
type Sender struct {
	feed      *events.Feed
	receivers []*receiver
	log       *slog.Logger
}

// New returns a sender to those receivers, whose files owner reads, of what list returns from now on: what the node
// remembers, from memory, the oldest first.
func New(to []config.Webhook, owner int, list func() []events.Event, log *slog.Logger) *Sender {
	s := &Sender{feed: events.NewFeed(list), log: log}
	for _, w := range to {
		s.receivers = append(s.receivers, newReceiver(w, log, func(ctx context.Context, e item) error { return post(ctx, w, owner, e) }))
	}
	return s
}

// Run posts what has happened since New, until ctx is done. Then it looks once more, and tries what waits for another
// two seconds at most: how this node's part in the group ended is among the last that happen to it.
func (s *Sender) Run(ctx context.Context) error {
	last, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var working sync.WaitGroup
	for _, r := range s.receivers {
		working.Go(func() { r.work(ctx, last) })
	}
	retry.Every(ctx, lookEvery, s.look)
	s.look()
	for _, r := range s.receivers {
		r.close()
	}
	defer time.AfterFunc(lingerTime, end).Stop()
	ended := make(chan struct{})
	go func() { defer close(ended); working.Wait() }()
	select {
	case <-ended:
	case <-last.Done():
		select { // a try notices it at once, unless the file with its secret is on a disk that stalls
		case <-ended:
		case <-time.After(stallTime):
		}
	}
	for _, r := range s.receivers {
		if n := r.Counts().Waiting; n > 0 {
			s.log.Warn("the agent ends before these events were sent", "webhook", r.Name, "events", n)
		}
	}
	return nil
}

// look gives the new events to the receivers. It waits for none.
func (s *Sender) look() {
	for _, e := range s.feed.Next() {
		body, err := json.Marshal(e)
		if err != nil { // a time beyond the year 9999
			continue
		}
		sum := sha256.Sum256(body)
		for _, r := range s.receivers {
			r.add(item{id: "evt_" + hex.EncodeToString(sum[:16]), kind: e.Kind, body: body, since: time.Now()})
		}
	}
}

// Counts returns what was counted, by receiver.
func (s *Sender) Counts() map[string]Counts {
	out := map[string]Counts{}
	for _, r := range s.receivers {
		out[r.Name] = r.Counts()
	}
	return out
}

// Problems returns a sentence for each receiver that has failed for long.
func (s *Sender) Problems() (out []string) {
	for _, r := range s.receivers {
		if p := r.problem(); p != "" {
			out = append(out, p)
		}
	}
	return out
}
