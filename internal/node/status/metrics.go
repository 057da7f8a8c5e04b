package status

import (
	"time"

	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/lib/rotating"
	"github.com/coteriedb/coterie/internal/node/metrics"
	"github.com/coteriedb/coterie/internal/postgres"
)

// Observed is the part of *pgserver.Observed that a Service shows: what the agent's loop last saw of the server.
type Observed interface {
	Latest() (postgres.Observation, bool)
	Behind(lsn ag.LSN) time.Duration
	ReplayRate() float64
}

// Parameters is the part of *pgserver.Parameters that a Service shows.
type Parameters interface {
	PendingRestarts() (n int, ok bool)
}

// Measured returns the facts of which the metrics are made. It answers from memory. The caller adds those of the ports
// for administrators.
func (s *Service) Measured() metrics.Facts {
	commit, _ := buildinfo.Source()
	f := metrics.Facts{
		Uptime: s.Agent.Uptime(), Build: metrics.Build{Version: buildinfo.Version, Commit: commit, PostgreSQL: s.Version()},
		Status: s.Status(), Transitions: s.Agent.Transitions(), Failovers: s.Agent.Failovers(), Expiry: s.Expiry(), Console: s.Clients.Consoles(),
		Endpoint: metrics.Endpoint{Refused: s.Endpoint.Refused(), Relayed: s.Endpoint.Relayed()},
	}
	f.Logs.Replaced, f.Logs.Failed = rotating.Counts()
	v := s.Agent.View()
	f.Known = v != nil
	if v != nil && v.Role() == ag.RolePrimary {
		left := max(boottime.Until(s.Agent.LeaseUntil()), 0)
		f.Lease = &left
	}
	if snap := s.Agent.Snapshot(); snap != nil {
		said := s.said(snap, s.Self)
		f.Space, f.Storage = said.Space, said.Storage
	}
	if s.Server != nil {
		f.Server = s.measuredServer(v)
	}
	if s.Backups != nil {
		f.Backup = measuredBackup(s.Backups.Latest())
	}
	if l := s.Listener(); l != nil {
		f.Clients = measuredClients(l)
	}
	return f
}

// measuredBackup returns what is known of the backups; nil where none are enabled.
func measuredBackup(b *catalog.Backup) *metrics.Backup {
	if b == nil || !b.Enabled {
		return nil
	}
	out := &metrics.Backup{Primary: b.Primary && b.Ours, Failing: b.FailedAt.After(b.ArchivedAt), Waiting: b.Waiting, Failed: b.Failed, Kept: b.Kept, Node: b.LastNode}
	if age := time.Since(b.Last); !b.Last.IsZero() {
		out.Age = &age
	}
	if behind := time.Since(b.Since); !b.Since.IsZero() {
		out.Behind = &behind
	}
	if b.FullIn != nil {
		full := time.Duration(*b.FullIn) * time.Second
		out.FullIn = &full
	}
	return out
}

// measuredServer returns what is known of this node's server. It does not ask the server: the agent's loop does so many
// times a minute.
func (s *Service) measuredServer(v *ag.View) *metrics.Server {
	x := &metrics.Server{Commits: s.Commits.Totals(), Seedings: s.Seedings(), Fences: s.Keeper.Fences()}
	if n, ok := s.Parameters.PendingRestarts(); ok {
		x.Pending = &n
	}
	if st, err := s.Keeper.Seen(); err == nil {
		x.Ends = st.ExitCount
		if st.Fenced != nil {
			x.LastFence = st.Fenced.At
		}
	}
	if s.Log != nil {
		x.Log = &metrics.ServerLog{Confirmed: s.Log.Confirmed(), Sound: s.Log.Sound()}
	}
	o, ok := s.Observed.Latest()
	if !ok {
		return x
	}
	x.Answers, x.Waiting, x.Flushed = true, o.SyncRepWaiters, o.Flush
	if o.InRecovery {
		x.Replayed, x.Replay = o.Replay, s.Observed.ReplayRate()
	}
	for _, slot := range o.Slots {
		if slot.Restart != 0 {
			x.Slots = append(x.Slots, metrics.Slot{Name: slot.Name, Active: slot.Active, Retained: behind(o.Flush, slot.Restart)})
		}
	}
	if v != nil && v.Role() == ag.RolePrimary {
		x.Streams = s.measuredStreams(o.Flush)
	}
	return x
}

// measuredStreams returns how far behind head each member is that streams.
func (s *Service) measuredStreams(head ag.LSN) (out []metrics.Stream) {
	told := map[ag.ReplicaID]bool{}
	for _, d := range s.Downstream.Streams() {
		if !d.Streaming || told[d.Member] {
			continue
		}
		told[d.Member] = true
		out = append(out, metrics.Stream{
			Member: d.Member, SendQueue: behind(head, max(d.Sent, d.Flush)), Lag: behind(head, d.Flush), Redo: behind(d.Flush, d.Apply),
			Behind: s.Observed.Behind(d.Flush), ReplayedBehind: s.Observed.Behind(d.Apply),
		})
	}
	return out
}

// behind returns how many bytes a position is behind another one; 0 if it is not.
func behind(head, at ag.LSN) int64 { return max(int64(head)-int64(at), 0) }

func measuredClients(l Listener) *metrics.Clients {
	c := &metrics.Clients{Stats: l.Stats(), Sessions: map[metrics.Sessions]int{}}
	for _, x := range l.Sessions() {
		if x.Relayed {
			c.Others++
			continue
		}
		c.Sessions[metrics.Sessions{Intent: x.Intent, Path: x.Path, State: x.State}]++
	}
	return c
}
