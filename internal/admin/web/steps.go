package web

import (
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
)

// The steps of a failover, in their order. A planned one begins with the hand-over by the primary.
const (
	stepAsked   = "asked"
	stepHand    = "hand-over"
	stepSeal    = "seal"
	stepPromote = "promote"
	stepLead    = "lead"
	stepOpen    = "open"
)

// course follows the steps of a failover by what this node knows of the group.
type course struct {
	to, from ag.ReplicaID
	epoch    ag.Epoch // before it
	steps    []Step
}

// newCourse returns the course of a statement that begins now; nil if it has no steps.
func newCourse(s ddl.Statement, st api.Status, now time.Time) *course {
	f, is := s.Action.(ddl.Failover)
	if !is {
		return nil
	}
	c := &course{to: ddl.ReplicaID(f.To), from: st.Primary, epoch: st.Epoch, steps: []Step{{Name: stepAsked, At: now}}}
	names := []string{stepHand, stepSeal, stepPromote, stepLead, stepOpen}
	if f.Force {
		names = names[1:]
	}
	for _, name := range names {
		c.steps = append(c.steps, Step{Name: name})
	}
	return c
}

// all returns the steps; nil if there are none.
func (c *course) all() []Step {
	if c == nil {
		return nil
	}
	return c.steps
}

// see takes what is known now, and reports whether a step was reached. Steps that were passed between two looks are
// reached with the one behind them.
func (c *course) see(st api.Status, now time.Time) (changed bool) {
	if c == nil {
		return false
	}
	reached := ""
	switch later := st.Epoch > c.epoch; {
	case later && st.Phase == ag.PhaseLead && st.Primary == c.to && st.WriteOpen:
		reached = stepOpen
	case later && st.Phase == ag.PhaseLead && st.Primary == c.to:
		reached = stepLead
	case later && st.Phase == ag.PhasePromote:
		reached = stepPromote
	case later && st.Phase == ag.PhaseSeal:
		reached = stepSeal
	case !later && st.Operation != "":
		reached = stepHand
	}
	last := -1
	for i, s := range c.steps {
		if s.Name == reached {
			last = i
		}
	}
	for i := range last + 1 {
		if c.steps[i].At.IsZero() {
			c.steps[i].At, changed = now, true
		}
	}
	return changed
}

// doing returns what the members that carry a failover out say that they do.
func (c *course) doing(st api.Status) string {
	var out []string
	for _, r := range st.Replicas {
		if said := r.Progress; said != "" && (r.Name == c.from || r.Name == c.to) {
			out = append(out, string(r.Name)+": "+said)
		}
	}
	return strings.Join(out, "; ")
}
