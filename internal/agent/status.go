package agent

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/boottime"
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
}

// key is what makes a status worth publishing at once.
func (s Status) key() string {
	return fmt.Sprint(s.Epoch, s.Rule, s.Role, s.Data, s.Server, s.Copy, s.Readable, s.Open, s.Stream, s.Busy, s.Members, s.SyncP, s.SyncN)
}

func (a *Agent) status(v ag.View, p ag.Plan) Status {
	s := Status{
		Epoch: v.Record.Epoch.Epoch, Rule: p.Rule, Because: p.Because, Role: v.Role(), Data: v.Local.Data, Server: v.Local.Server,
		Copy: v.Local.Copy, Position: v.Local.Position, Open: p.Open && !a.shut.Load(), Busy: v.Busy,
	}
	if pr := a.progress.Load(); pr != nil {
		s.Progress = *pr
	}
	if a.cfg.Instance == nil {
		return s
	}
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

// Decision is one firing of a rule, kept for coterie explain.
type Decision struct {
	At      time.Time `json:"at"`
	Rule    ag.Rule   `json:"rule"`
	Because string    `json:"because"`
	Epoch   ag.Epoch  `json:"epoch"`
	View    ag.View   `json:"view"`
}

const decisionsKept = 256

// decisions is the bounded memory of what was decided.
type decisions struct {
	mu    sync.Mutex // guards the fields below
	kept  []Decision
	count map[ag.Rule]uint64
	last  string
}

func newDecisions() *decisions { return &decisions{count: map[ag.Rule]uint64{}} }

// note remembers a decision that differs from the last one and reports whether it does.
func (d *decisions) note(v ag.View, p ag.Plan) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count[p.Rule]++
	key := fmt.Sprint(p.Rule, v.Record.Epoch.Epoch, v.Record.Epoch.Phase, v.Local.Server, v.Quorum)
	if p.Rule != ag.RuleSeal && p.Rule != ag.RuleBusy && p.Rule != ag.RuleSync {
		key += p.Because
	}
	if key == d.last {
		return false
	}
	d.last = key
	d.kept = append(d.kept, Decision{time.Now(), p.Rule, p.Because, v.Record.Epoch.Epoch, v})
	if len(d.kept) > decisionsKept {
		d.kept = slices.Delete(d.kept, 0, len(d.kept)-decisionsKept)
	}
	return true
}

// Decisions returns the last decisions, oldest first.
func (a *Agent) Decisions() []Decision {
	a.history.mu.Lock()
	defer a.history.mu.Unlock()
	return slices.Clone(a.history.kept)
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
