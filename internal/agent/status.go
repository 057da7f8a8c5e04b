package agent

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// Status is what one node reports about itself to the group.
type Status struct {
	Epoch    ag.Epoch                `json:"epoch"`
	Rule     ag.Rule                 `json:"rule"`
	Because  string                  `json:"because"`
	Role     ag.Role                 `json:"role"`
	Data     ag.DataState            `json:"data"`
	Server   ag.ServerState          `json:"server"`
	Copy     ag.CopyID               `json:"copy,omitempty"`
	Position ag.Position             `json:"position"`
	Readable bool                    `json:"readable"`           // takes read-only sessions as a secondary
	Open     bool                    `json:"open"`               // takes writes
	Stream   bool                    `json:"streaming"`          // a WAL stream from the leader is open
	Busy     string                  `json:"busy,omitempty"`     // the long action under way
	Progress string                  `json:"progress,omitempty"` // of that action
	Members  []ag.Member             `json:"members,omitempty"`  // as primary: members whose stream is open
	Flushed  map[ag.ReplicaID]ag.LSN `json:"flushed,omitempty"`
	SyncP    []ag.ReplicaID          `json:"sync_members,omitempty"`
	SyncN    int                     `json:"sync_count"`
	Config   int64                   `json:"config_revision"`     // of the configuration this node acts on
	HandOver *Outcome                `json:"hand_over,omitempty"` // of the last planned failover that was this node's to carry out

	Wellness

	NoVote      string        `json:"no_vote,omitempty"`     // why its vote in the quorum is not cast
	Incarnation string        `json:"incarnation,omitempty"` // of the agent that says all this
	Fence       time.Duration `json:"fence,omitempty"`       // how long its host takes to fence a server; 0: not measured

	Copying json.RawMessage `json:"copying,omitempty"` // Config.Copying
}

// Key is what makes a status worth publishing, and worth looking at, at once: two with one key differ by how far they are.
func (s Status) Key() string {
	key := fmt.Sprint(s.Epoch, s.Rule, s.Role, s.Data, s.Server, s.Copy, s.Readable, s.Open, s.Stream, s.Busy, s.Members, s.SyncP, s.SyncN, s.Config)
	key += fmt.Sprint(s.Ill != "", s.Concern != "", s.Quarantine, s.StoodDown, s.NoVote != "", s.Copying != nil)
	if s.HandOver != nil {
		key += s.HandOver.Op
	}
	if s.Busy == "hand-over" || s.Busy == "promote" || s.Busy == "" { // steps that somebody watches; a copy's percents are for later
		key += s.Progress
	}
	return key
}

func (a *Agent) status(v ag.View, p ag.Plan) Status {
	s := Status{
		Incarnation: a.cfg.Incarnation, Epoch: v.Record.Epoch.Epoch, Rule: p.Rule, Because: p.Because, Role: v.Role(), Data: v.Local.Data, Server: v.Local.Server,
		Copy: v.Local.Copy, Position: v.Local.Position, Open: p.Open && !a.shut.Load(), Busy: v.Busy,
	}
	if pr := a.progress.Load(); pr != nil {
		s.Progress = *pr
	}
	s.HandOver = a.outcome.Load()
	if a.cfg.NoVote != nil {
		s.NoVote = a.cfg.NoVote()
	}
	if a.cfg.Copying != nil {
		s.Copying = a.cfg.Copying()
	}
	if snap := a.snapshot.Load(); snap != nil {
		s.Config = snap.GroupRev
	}
	if a.cfg.Instance == nil {
		return s
	}
	s.Wellness, s.Fence = a.wellness(v), a.cfg.Fence
	s.Readable = v.Local.Server == ag.ServerRecovery && v.Local.Data == ag.DataPresent && v.Busy == ""
	s.Stream = a.cfg.Upstream.Status().Connected && v.Local.Server == ag.ServerRecovery
	if v.Local.Server == ag.ServerWritable {
		s.SyncP, s.SyncN = v.Local.Sync.P, v.Local.Sync.N
		s.Flushed = map[ag.ReplicaID]ag.LSN{}
		for _, st := range v.Streams {
			if st.Open {
				s.Members = append(s.Members, ag.Member{ID: st.Member, Copy: st.Copy})
				s.Flushed[st.Member] = st.Flush
			}
		}
	}
	return s
}

// Fired returns how often each rule fired since the agent started.
func (a *Agent) Fired() map[ag.Rule]uint64 {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	m := make(map[ag.Rule]uint64, len(ag.Rules))
	for _, r := range ag.Rules {
		m[r] = a.history.count[r]
	}
	return m
}

// Uptime returns how long the agent has run.
func (a *Agent) Uptime() time.Duration { return boottime.Now() - a.startedAt }

func sameGroup(x, y ag.Group) bool {
	return reflect.DeepEqual(x, y)
}
