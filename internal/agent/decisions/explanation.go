package decisions

import (
	"slices"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/ag/availability"
)

// Explanation is the answer of a node's management socket to GET explain, which coterie explain prints.
type Explanation struct {
	Node    ag.ReplicaID            `json:"node"`                  // the node that was asked
	Asked   []ag.ReplicaID          `json:"members"`               // members whose decisions are in it
	Missing map[ag.ReplicaID]string `json:"unreachable,omitempty"` // members whose decisions are not, and why
	Changes []Change                `json:"changes"`               // of leadership, oldest first
	Last    *Change                 `json:"last,omitempty"`        // the one asked for, with its decisions
	Now     []Forecast              `json:"now"`
	// NotReady is why the primary's death would not be survived without a person, by the judgement of the node that was
	// asked; "": it would be, or that is not known.
	NotReady string `json:"not_ready,omitempty"`
	// NoPrimary is why no primary leads now, by the judgement of the node that was asked; "": one does. The forecast is
	// then what happens now.
	NoPrimary string `json:"no_primary,omitempty"`
	// Failures are what the death of each member would lead to, by the judgement of the node that was asked.
	Failures  []availability.Failure `json:"failures,omitempty"`
	Decisions []Decision             `json:"decisions,omitempty"` // all there are, if asked for
}

// Forecast is what a node would do if the primary failed now, with the conditions for it.
type Forecast struct {
	Node   ag.ReplicaID `json:"node"`
	Leads  bool         `json:"leads"`
	Checks []ag.Check   `json:"checks"`
}

// Report is what one node tells another about its decisions.
type Report struct {
	Decisions []Decision `json:"decisions"`
	View      *ag.View   `json:"view"`
}

// The bounds of a report: a control reply may have a megabyte.
const (
	ReportBytes = 900 << 10
	ReportWait  = 3 * time.Second
)

// Tell fills the explanation from the reports of the members.
func (e *Explanation) Tell(told map[ag.ReplicaID]Report) {
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
			o := Forecast{Node: id, Leads: v.Role() == ag.RolePrimary}
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

// Pick chooses the change to explain: that of the epoch, or, with epoch 0, the last one that made another replica the
// primary, or else the last one. It reports whether there is such a change; with epoch 0 that is not required.
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
