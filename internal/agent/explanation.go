package agent

import (
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

// Explanation is what coterie explain says: the answer of a node's management socket to GET explain.
type Explanation struct {
	Node      ag.ReplicaID            `json:"node"`                  // who was asked
	Asked     []ag.ReplicaID          `json:"members"`               // whose decisions are in it
	Missing   map[ag.ReplicaID]string `json:"unreachable,omitempty"` // whose are not, and why
	Changes   []Change                `json:"changes"`               // of leadership, oldest first
	Last      *Change                 `json:"last,omitempty"`        // the one asked for, with its decisions
	Now       []Outlook               `json:"now"`
	Decisions []Decision              `json:"decisions,omitempty"` // all there are, if asked for
}

// Outlook is what a node would do if the primary failed now, and on what conditions.
type Outlook struct {
	Node   ag.ReplicaID `json:"node"`
	Leads  bool         `json:"leads"`
	Checks []ag.Check   `json:"checks"`
}

// Testimony is what one node tells another of its decisions.
type Testimony struct {
	Decisions []Decision `json:"decisions"`
	View      *ag.View   `json:"view"`
}

// The bounds of a testimony: a control reply has a megabyte.
const (
	TestimonyBytes = 900 << 10
	TestimonyWait  = 3 * time.Second
)

func (e *Explanation) Tell(told map[ag.ReplicaID]Testimony) {
	var lists [][]Decision
	for id := range told {
		e.Asked = append(e.Asked, id)
	}
	slices.Sort(e.Asked)
	for _, id := range e.Asked {
		t := told[id]
		lists = append(lists, t.Decisions)
		if v := t.View; v != nil {
			if r, ok := v.Group.Replica(id); !ok || !r.HasData() {
				continue
			}
			o := Outlook{Node: id, Leads: v.Role() == ag.RolePrimary}
			o.Checks = v.WhyClaim()
			if o.Leads {
				o.Checks = v.WhyLead()
			}
			e.Now = append(e.Now, o)
		}
	}
	e.Decisions = Merge(lists...)
	e.Changes = Changes(e.Decisions)
}

// Pick chooses the change to tell: of that epoch, or the last one that made another replica the primary, or else the last.
func (e *Explanation) Pick(epoch ag.Epoch) bool {
	for _, c := range slices.Backward(e.Changes) {
		if epoch != 0 && c.Epoch == epoch || epoch == 0 && c.From != c.To {
			t := c.Tell(e.Decisions)
			e.Last = &t
			return true
		}
	}
	if n := len(e.Changes); n > 0 && epoch == 0 {
		t := e.Changes[n-1].Tell(e.Decisions)
		e.Last = &t
	}
	return epoch == 0
}
