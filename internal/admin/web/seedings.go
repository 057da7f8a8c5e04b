package web

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/admin/console"
)

// Bounds of what is kept of copies: how often one that is under way is looked at, how many points its curve may have
// before every second one is left out, and how many copies are kept.
const (
	lookSeedings = 2 * time.Second
	maxPoints    = 400
	maxSeedings  = 20
)

// Seeding is the document of a copy to a replica, with its course since this agent has seen it.
type Seeding struct {
	Replica  string     `json:"replica"`
	Source   string     `json:"source,omitempty"` // "": it is not known on this node
	State    string     `json:"state"`            // with its progress while it is not over
	Started  time.Time  `json:"started"`
	Ended    *time.Time `json:"ended,omitempty"`
	Expected *time.Time `json:"expected_end,omitempty"`
	Done     int64      `json:"done_bytes"`
	Total    int64      `json:"total_bytes"` // 0: not known yet
	Rate     int64      `json:"bytes_per_second"`
	Failure  string     `json:"failure,omitempty"`
	// Seconds since the start, and what was done then: points of the same number.
	Seconds []float64 `json:"seconds"`
	Bytes   []int64   `json:"bytes"`
	step    float64   // between two points, in seconds
}

// add adds a point. The last one moves on until it is a step after the one before. A curve that has too many loses
// every second one, and its steps become twice as long.
func (s *Seeding) add(at time.Time, done int64) {
	x, n := at.Sub(s.Started).Seconds(), len(s.Seconds)
	if n > 1 && s.Seconds[n-1]-s.Seconds[n-2] < s.step {
		s.Seconds[n-1], s.Bytes[n-1] = x, done
		return
	}
	s.Seconds, s.Bytes = append(s.Seconds, x), append(s.Bytes, done)
	if n+1 > maxPoints {
		for i := 1; 2*i <= n; i++ {
			s.Seconds[i], s.Bytes[i] = s.Seconds[2*i], s.Bytes[2*i]
		}
		s.Seconds, s.Bytes, s.step = s.Seconds[:n/2+1], s.Bytes[:n/2+1], max(2*s.step, 2*lookSeedings.Seconds())
	}
}

// seedings are the copies that this node knows of, the oldest first.
type seedings struct {
	mu     sync.Mutex // guards the fields below
	list   []*Seeding
	looked time.Time
}

// due reports whether nobody has looked lately, and has others not look at the same time.
func (k *seedings) due(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	due := now.Sub(k.looked) >= lookSeedings
	if due {
		k.looked = now
	}
	return due
}

// underWay reports whether a copy is under way, by what was seen last.
func (k *seedings) underWay() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.list, func(s *Seeding) bool { return s.Ended == nil })
}

// note takes what was seen of copies.
func (k *seedings) note(at time.Time, seen []Seeding) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looked = at
	for _, x := range seen {
		i := slices.IndexFunc(k.list, func(s *Seeding) bool { return s.Replica == x.Replica && s.Started.Equal(x.Started) })
		if i < 0 {
			i = len(k.list)
			k.list = append(k.list, &x)
		}
		s := k.list[i]
		x.Seconds, x.Bytes, x.step = s.Seconds, s.Bytes, s.step
		was := s.Ended
		*s = x
		if was == nil && x.Total > 0 {
			if x.Ended != nil {
				at = *x.Ended
			}
			s.add(at, x.Done)
		}
	}
	k.list = k.list[max(0, len(k.list)-maxSeedings):]
}

// all returns the copies, the newest first.
func (k *seedings) all() []Seeding {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]Seeding, 0, len(k.list))
	for _, s := range slices.Backward(k.list) {
		x := *s
		x.Seconds, x.Bytes = append([]float64{}, s.Seconds...), append([]int64{}, s.Bytes...)
		out = append(out, x)
	}
	return out
}

// lookAtSeedings asks how far the copies are.
func (s *Server) lookAtSeedings(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	at := time.Now()
	r, err := console.NewSession(s.c.Backend(), reader).Run(ctx, "SELECT remote_machine_name, role_desc, internal_state_desc, transfer_rate_bytes_per_second, transferred_size_bytes, database_size_bytes, start_time_utc, end_time_utc, estimate_time_complete_utc, failure_message FROM sys.dm_hadr_physical_seeding_stats ORDER BY start_time_utc")
	if err != nil {
		return
	}
	var seen []Seeding
	for _, row := range r.Rows {
		if x, ok := s.seedingOf(row); ok {
			seen = append(seen, x)
		}
	}
	s.seedings.note(at, seen)
}

// seedingOf reads a row of sys.dm_hadr_physical_seeding_stats, which is seen from this node.
func (s *Server) seedingOf(row []any) (Seeding, bool) {
	if len(row) != 10 {
		return Seeding{}, false
	}
	text := func(i int) string { v, _ := row[i].(string); return v }
	number := func(i int) int64 { v, _ := row[i].(int64); return v }
	moment := func(i int) *time.Time {
		t, ok := row[i].(time.Time)
		if !ok {
			return nil
		}
		return &t
	}
	started := moment(6)
	x := Seeding{Replica: text(0), State: text(2), Rate: number(3), Done: number(4), Total: number(5), Ended: moment(7), Expected: moment(8), Failure: text(9)}
	if text(1) == "Destination" {
		x.Replica, x.Source = string(s.c.Self), text(0)
	}
	if started == nil || x.Replica == "" {
		return Seeding{}, false
	}
	x.Started = *started
	return x, true
}

// listSeedings answers with the copies that this node knows of.
func (s *Server) listSeedings(w http.ResponseWriter, r *http.Request, _ *session) {
	if s.seedings.due(time.Now()) {
		s.lookAtSeedings(r.Context())
	}
	answer(w, http.StatusOK, s.seedings.all())
}
