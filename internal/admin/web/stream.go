package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
)

// Bounds of streams.
const (
	maxStreams     = 64
	keptStreams    = 16   // of these, kept for roles that may change something
	sessionStreams = 6    // of one session
	streamQueue    = 64   // messages that wait for a slow reader; one more, and its stream ends
	maxRing        = 3000 // events that a stream can resume from
	streamWrite    = 5 * time.Second
)

// How often a change is looked for while a stream is open, how often the status is sent at least and at most, and how
// often all nodes are asked for their events: usually, and for how long after a turn of the status more often.
const (
	lookStatus  = 100 * time.Millisecond
	atMost      = time.Second
	atLeast     = 4 * time.Second
	lookEvents  = time.Second
	turnEvents  = 100 * time.Millisecond
	turnLasts   = 2 * time.Second
	eventsLimit = 10 * time.Second
)

// Event is something that happened, as coterie.events has it.
type Event struct {
	ID      string `json:"id"` // of this agent's life; a stream resumes after it
	Node    string `json:"node"`
	At      string `json:"at"`
	Epoch   any    `json:"epoch"`
	Kind    string `json:"kind"`
	What    string `json:"what"`
	Because any    `json:"because"`
}

func (e Event) same() string {
	return fmt.Sprint(e.Node, "\x00", e.At, "\x00", e.Kind, "\x00", e.What, "\x00", e.Because)
}

// hub sends the status and the events to the open streams.
type hub struct {
	status func() []byte
	ask    func(ctx context.Context) ([]Event, error)
	life   string // begins the ids of this agent's events
	wake   chan struct{}
	// wakeEvents is the same for runEvents.
	wakeEvents chan struct{}
	turns      chan struct{} // the status has turned: events are to be expected

	dropped atomic.Uint64 // streams whose readers were too slow

	asking sync.Mutex // held while the nodes are asked
	asked  time.Time  // guarded by asking

	mu      sync.Mutex // guards the fields below
	streams map[*stream]struct{}
	ring    []Event
	next    uint64
	seen    map[string]bool // of the ring
	past    map[string]bool // were in the ring, and may be told of again
}

// stream is an open stream.
type stream struct {
	out  chan []byte
	slow chan struct{} // closed when the queue was full
	once sync.Once
}

func newHub(status func() []byte, ask func(context.Context) ([]Event, error)) *hub {
	return &hub{status: status, ask: ask, life: strings.ToLower(rand.Text()[:8]), wake: make(chan struct{}, 1), wakeEvents: make(chan struct{}, 1), turns: make(chan struct{}, 1), streams: map[*stream]struct{}{}, seen: map[string]bool{}, past: map[string]bool{}, next: 1}
}

func (h *hub) open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams)
}

// run looks for changes while a stream is open, until ctx is done.
func (h *hub) run(ctx context.Context) {
	t := time.NewTicker(lookStatus)
	defer t.Stop()
	var last []byte
	var sent time.Time
	for {
		if h.open() == 0 {
			select {
			case <-ctx.Done():
				return
			case <-h.wake:
			}
		}
		if doc := h.status(); time.Since(sent) >= atLeast || !bytes.Equal(doc, last) {
			turn := turned(doc, last)
			if turn && last != nil {
				wake(h.turns)
			}
			if turn || time.Since(sent) >= atMost {
				h.send(message("status", "", doc))
				last, sent = doc, time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// runEvents asks for events while a stream is open, until ctx is done. It is apart from run: a node that does not
// answer keeps the events waiting, and must not delay the status, which says that it does not.
//
// A turn of the status comes with events, on several nodes and some of them a moment later: then it asks more often.
func (h *hub) runEvents(ctx context.Context) {
	var turn time.Time
	for {
		if h.open() == 0 {
			select {
			case <-ctx.Done():
				return
			case <-h.wakeEvents:
			}
		}
		pause := lookEvents
		if time.Since(turn) < turnLasts {
			pause = turnEvents
		}
		h.refresh(ctx, pause/2)
		select {
		case <-ctx.Done():
			return
		case <-h.turns:
			turn = time.Now()
		case <-time.After(pause):
		}
	}
}

// turned reports whether the group is another one than before: then a stream hears of it at once.
func turned(now, before []byte) bool {
	type replica struct {
		Name      string `json:"name"`
		Role      string `json:"role"`
		Sync      string `json:"synchronization_state"`
		Connected string `json:"connected_state"`
		Suspended bool   `json:"suspended"`
	}
	type essence struct {
		Epoch     json.Number `json:"epoch"`
		Phase     string      `json:"phase"`
		WriteOpen bool        `json:"write_open"`
		Quorum    bool        `json:"quorum"`
		Operation string      `json:"operation"`
		Replicas  []replica   `json:"replicas"`
	}
	var a, b essence
	if json.Unmarshal(now, &a) != nil || json.Unmarshal(before, &b) != nil {
		return true
	}
	same := slices.Equal(a.Replicas, b.Replicas)
	a.Replicas, b.Replicas = nil, nil
	return !same || !reflect.DeepEqual(a, b)
}

// wake has the loop that waits for the channel go on.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is woken already
	}
}

// refresh asks all nodes for their events, if the last answer is older than age, and sends those that are new.
func (h *hub) refresh(ctx context.Context, age time.Duration) {
	h.asking.Lock()
	defer h.asking.Unlock()
	if time.Since(h.asked) < age {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	found, err := h.ask(ctx)
	h.asked = time.Now()
	if err == nil {
		h.add(found)
	}
}

// add appends the events that are new, the oldest first. All of them are one message in the queue of a stream: the
// first stream of an agent's life gets hundreds at once, and does not count as a slow one for that.
func (h *hub) add(found []Event) {
	slices.SortStableFunc(found, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	h.mu.Lock()
	defer h.mu.Unlock()
	told := make(map[string]bool, len(found))
	var fresh bytes.Buffer
	for _, e := range found {
		key := e.same()
		told[key] = true
		if h.seen[key] || h.past[key] {
			continue
		}
		h.seen[key] = true
		e.ID = h.life + "-" + strconv.FormatUint(h.next, 10)
		h.next++
		h.ring = append(h.ring, e)
		fresh.Write(eventMessage(e))
	}
	if fresh.Len() > 0 {
		for s := range h.streams {
			h.queue(s, fresh.Bytes())
		}
	}
	for len(h.ring) > maxRing {
		key := h.ring[0].same()
		delete(h.seen, key)
		h.past[key] = true // its node may tell of it still
		h.ring = h.ring[1:]
	}
	if len(h.past) > maxRing {
		maps.DeleteFunc(h.past, func(key string, _ bool) bool { return !told[key] })
	}
}

func (h *hub) send(m []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		h.queue(s, m)
	}
}

// queue has a message wait for its stream, and ends a stream whose reader is too slow; mu is held.
func (h *hub) queue(s *stream, m []byte) {
	select {
	case s.out <- m:
	default:
		s.once.Do(func() { h.dropped.Add(1); close(s.slow) })
		delete(h.streams, s)
	}
}

// after returns the events after that id, and whether the id is one of this agent's that it still knows of. Without it
// they are all it has.
func (h *hub) after(id string) (list []Event, resumed bool) {
	life, number, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	if life != h.life || err != nil || n >= h.next || len(h.ring) == 0 || n+1 < h.next-uint64(len(h.ring)) {
		return slices.Clone(h.ring), false
	}
	return slices.Clone(h.ring[len(h.ring)-int(h.next-1-n):]), true
}

// enter opens a stream, with what it missed since that id. It reports false if there are that many.
func (h *hub) enter(id string, most int) (s *stream, missed []Event, resumed, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.streams) >= most {
		return nil, nil, false, false
	}
	s = &stream{out: make(chan []byte, streamQueue), slow: make(chan struct{})}
	h.streams[s] = struct{}{}
	missed, resumed = h.after(id)
	wake(h.wake)
	wake(h.wakeEvents)
	return s, missed, resumed, true
}

func (h *hub) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
}

// message returns a message of a stream. Its data is JSON, which has no line breaks.
func message(event, id string, data []byte) []byte {
	var b bytes.Buffer
	if id != "" {
		fmt.Fprintf(&b, "id: %s\n", id)
	}
	fmt.Fprintf(&b, "event: %s\ndata: %s\n\n", event, data)
	return b.Bytes()
}

func eventMessage(e Event) []byte {
	b, err := json.Marshal(e)
	if err != nil {
		b = []byte("{}")
	}
	return message("event", e.ID, b)
}

// askEvents reads coterie.events.
func (s *Server) askEvents(ctx context.Context) ([]Event, error) {
	r, err := console.NewSession(s.c.Backend(), reader).Run(ctx, "SELECT node, at, epoch, kind, what, because FROM coterie.events")
	if err != nil {
		return nil, err
	}
	text := func(v any) string {
		switch v := v.(type) {
		case nil:
			return ""
		case time.Time:
			return v.UTC().Format(time.RFC3339Nano)
		}
		return fmt.Sprint(v)
	}
	out := make([]Event, 0, len(r.Rows))
	for _, row := range r.Rows {
		if len(row) == 6 {
			out = append(out, Event{Node: text(row[0]), At: text(row[1]), Epoch: row[2], Kind: text(row[3]), What: text(row[4]), Because: row[5]})
		}
	}
	return out, nil
}

// events answers with the events, as a list or, for Accept: text/event-stream, as a stream that goes on.
func (s *Server) events(w http.ResponseWriter, r *http.Request, n *session) {
	if !strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		s.hub.refresh(r.Context(), lookEvents)
		s.hub.mu.Lock()
		list, _ := s.hub.after(r.URL.Query().Get("after"))
		s.hub.mu.Unlock()
		if list == nil {
			list = []Event{}
		}
		answer(w, http.StatusOK, list)
		return
	}
	if !s.takeStream(n) {
		refuse(w, http.StatusTooManyRequests, &console.Error{State: "53300", Message: fmt.Sprintf("this session has %d streams", sessionStreams)})
		return
	}
	defer s.giveStream(n)
	stream, missed, resumed, ok := s.hub.enter(r.Header.Get("Last-Event-ID"), placesFor(n.may(), maxStreams, keptStreams))
	if !ok {
		refuse(w, http.StatusServiceUnavailable, &console.Error{State: "53300", Message: fmt.Sprintf("this node has %d streams", maxStreams), Hint: "Open the console of another member."})
		return
	}
	defer s.hub.leave(stream)
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{}) // the stream lasts as long as its reader
	write := func(b []byte) bool {
		_ = rc.SetWriteDeadline(time.Now().Add(streamWrite))
		_, err := w.Write(b)
		return err == nil && rc.Flush() == nil
	}
	var first bytes.Buffer
	first.WriteString("retry: 1000\n\n")
	if !resumed {
		first.Write(message("reset", "", []byte("{}")))
	}
	for _, e := range missed {
		first.Write(eventMessage(e))
	}
	for _, d := range s.deeds.all() {
		if d.State == deedRunning || time.Since(d.Ended) < deedShown {
			first.Write(deedMessage(d))
		}
	}
	first.Write(message("status", "", s.statusDocument()))
	look := time.NewTicker(s.lookEvery)
	defer look.Stop()
	for ok := write(first.Bytes()); ok; {
		select {
		case m := <-stream.out:
			ok = write(m)
		case <-stream.slow:
			ok = false
		case <-n.ended:
			ok = false
			write(message("ended", "", []byte("{}")))
		case <-look.C:
			s.mayStay(r.Context(), n) // or ended is closed
		case <-time.After(time.Until(n.began.Add(lifetime))):
			ok = false
		case <-r.Context().Done():
			ok = false
		}
	}
}

// takeStream counts a stream of the session instead of its request, whose place it gives back.
func (s *Server) takeStream(n *session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams >= sessionStreams {
		return false
	}
	n.streams++
	n.running--
	return true
}

func (s *Server) giveStream(n *session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.streams--
	n.running++
}
