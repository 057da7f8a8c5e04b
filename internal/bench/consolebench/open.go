package consolebench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// message is one message of the stream of events.
type message struct {
	event string
	data  []byte
	size  int // bytes of its lines
	at    time.Time
}

// stream reads the stream of events until f returns false, or it ends.
func (c *client) stream(ctx context.Context, f func(message) bool) error {
	resp, err := c.ask(ctx, http.MethodGet, "/api/v1/events", nil, "Accept", "text/event-stream")
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxAnswer)
	var m message
	for lines.Scan() {
		line := lines.Text()
		m.size += len(line) + 1
		if rest, ok := strings.CutPrefix(line, "event: "); ok {
			m.event = rest
		}
		if rest, ok := strings.CutPrefix(line, "data: "); ok {
			m.data = []byte(rest)
		}
		if line == "" {
			m.at = time.Now()
			if !f(m) {
				return resp.Body.Close()
			}
			m = message{}
		}
	}
	return errors.Join(lines.Err(), resp.Body.Close())
}

// maxTold bounds what an open console remembers.
const maxTold = 10_000

// told is an event, or a status with another primary, that reached a console.
type told struct {
	Kind string    // of the event; status: the first status that names this primary and says that it takes writes
	What string    // what the event says, or the primary
	At   time.Time // by the node that remembers it; zero for a status
	Came time.Time
}

// open is an open console: a client that does what the page does.
type open struct {
	*client
	charts bool // the screen of charts is open, too

	wake chan struct{} // a change of the leadership has the views looked at once

	mu      sync.Mutex // guards the fields below
	since   time.Time  // when the stream was opened; what is older was there before
	told    []told
	primary string
	ready   bool // the stream has told its first status
	ends    int  // streams that ended
	failed  int  // requests that failed
	last    error
}

// run does what the page does, until ctx is done.
func (o *open) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		retry.Every(ctx, time.Second, func() {
			o.mu.Lock()
			o.since = time.Now()
			o.mu.Unlock()
			err := o.stream(ctx, func(m message) bool { o.heard(m); return ctx.Err() == nil })
			o.ended(ctx, err)
		})
	})
	if o.charts {
		wg.Go(func() { retry.Every(ctx, chartsEvery, func() { o.look(ctx, "/api/v1/history?span=hour") }) })
	}
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		_ = all(overviewViews, func(v string) error { o.look(ctx, "/api/v1/views/"+v); return nil })
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-o.wake:
		}
	}
}

func (o *open) look(ctx context.Context, path string) {
	if _, _, err := o.get(ctx, path); err != nil && ctx.Err() == nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.failed++
		o.last = err
	}
}

func (o *open) ended(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends++
	o.last = errors.Join(errors.New("the stream ended"), err)
}

// heard keeps an event that is new, and a status that names another primary.
func (o *open) heard(m message) {
	var doc struct {
		At        time.Time `json:"at"`
		Kind      string    `json:"kind"`
		What      string    `json:"what"`
		Primary   string    `json:"primary"`
		WriteOpen bool      `json:"write_open"`
	}
	if m.event != "event" && m.event != "status" || json.Unmarshal(m.data, &doc) != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if m.event == "event" {
		if doc.At.After(o.since) && len(o.told) < maxTold {
			o.told = append(o.told, told{Kind: doc.Kind, What: doc.What, At: doc.At, Came: m.at})
		}
		return
	}
	if doc.WriteOpen && doc.Primary != o.primary && len(o.told) < maxTold {
		if o.primary != "" {
			o.told = append(o.told, told{Kind: "status", What: doc.Primary, Came: m.at})
			select {
			case o.wake <- struct{}{}:
			default:
			}
		}
		o.primary = doc.Primary
	}
	o.ready = true
}

// toldSince returns what came of the events since that time.
func (o *open) toldSince(t time.Time) (out []told) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range o.told {
		if !x.Came.Before(t) && (x.Kind == "status" || x.At.After(t)) {
			out = append(out, x)
		}
	}
	return out
}

func (o *open) isReady() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ready
}
