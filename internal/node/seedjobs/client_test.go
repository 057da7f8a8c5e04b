package seedjobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// errNoRoute is the error of a call to a node that cannot be reached.
var errNoRoute = errors.New("no route")

// clientOf returns the client of the node self in the group of n1, n2, n3 and the witness w. there answers at every
// other node; nil: no other node answers.
func clientOf(self ag.ReplicaID, own *Controller, there *Client) *Client {
	group := ag.Group{Replicas: []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}, {ID: "w", AvailabilityMode: ag.ConfigurationOnly}}}
	return NewClient(ClientConfig{
		Self: self, Own: func() *Controller { return own }, Replica: group.Replica,
		Seed: func(ctx context.Context, _ ag.Replica, req api.SeedRequest) (op seeding.Operation, err error) {
			if there == nil {
				return op, errNoRoute
			}
			return there.AnswerSeed(ctx, req)
		},
		Cancel: func(context.Context, ag.Replica) (op seeding.Operation, err error) {
			if there == nil {
				return op, errNoRoute
			}
			return there.AnswerCancel()
		},
		List: func(context.Context, ag.Replica) ([]seeding.Operation, error) {
			if there == nil {
				return nil, errNoRoute
			}
			return there.AnswerList()
		},
		View: func() *ag.View { return &ag.View{Reach: []ag.ReplicaID{"n1", "n2", "n3"}} },
		Snapshot: func() *agent.Snapshot {
			return &agent.Snapshot{Statuses: map[ag.ReplicaID]agent.Status{"n3": {Copying: []byte(`{"id":"heard"}`)}}}
		},
		Heard: func(ag.ReplicaID) time.Time { return time.Time{} },
	})
}

// TestRequestsTravel requests a copy of n3 at n1, whose calls a client of n3 answers. Requests, refusals and errors
// arrive unchanged.
func TestRequestsTravel(t *testing.T) {
	t.Parallel()
	n := secondary()
	own := n.open(t, t.TempDir())
	there := clientOf("n3", own, nil)
	here := clientOf("n1", nil, there)
	if ops, err := here.List(t.Context(), "n3"); err != nil || len(ops) != 0 {
		t.Errorf("before: %+v, %v", ops, err)
	}
	op, err := here.Seed(t.Context(), api.SeedRequest{Replica: "n3"})
	if err != nil || op.State != seeding.Pending || op.Target != "n3" {
		t.Errorf("seed: %+v, %v", op, err)
	}
	if ops, err := here.List(t.Context(), "n3"); err != nil || len(ops) != 1 || ops[0].ID != op.ID {
		t.Errorf("list: %+v, %v", ops, err)
	}
	if op, err := here.Cancel(t.Context(), "n3"); err != nil || op.State != seeding.Cancelled {
		t.Errorf("cancel: %+v, %v", op, err)
	}
	if _, err := here.Cancel(t.Context(), "n3"); kindOf(err) != "refused" || !strings.Contains(err.Error(), "nothing is being copied to n3") {
		t.Errorf("cancel again: %v", err)
	}
	if op, err := there.Seed(t.Context(), api.SeedRequest{Replica: "n3"}); err != nil || op.State != seeding.Pending {
		t.Errorf("on the node itself: %+v, %v", op, err)
	}
	if ops, err := there.List(t.Context(), "n3"); err != nil || len(ops) != 2 {
		t.Errorf("on the node itself: %+v, %v", ops, err)
	}
}

// TestRequestOfADeadAgent holds that a node whose agent does not run is said not to answer, with what to do.
func TestRequestOfADeadAgent(t *testing.T) {
	t.Parallel()
	_, err := call(t.Context(), ag.Replica{ID: "n3"}, func(context.Context) (int, error) {
		return 0, fmt.Errorf("call seed on n3: %w", syscall.ECONNREFUSED)
	})
	if kindOf(err) != "unhealthy" || err.Error() != "n3 does not answer; nothing was changed (on it: systemctl status coterie, or start its agent)" {
		t.Errorf("%v", err)
	}
}

// TestNoCopyToAskFor holds the refusals that need no other node, and the answers for a witness and for a node that does
// not answer.
func TestNoCopyToAskFor(t *testing.T) {
	t.Parallel()
	c := clientOf("n1", nil, nil)
	for _, tt := range []struct {
		id         ag.ReplicaID
		kind, text string
	}{
		{"n9", "usage", "the group has no replica n9"},
		{"w", "refused", "w is a witness and holds no data"},
		{"n2", "unhealthy", "ask n2: no route"},
	} {
		_, seed := c.Seed(t.Context(), api.SeedRequest{Replica: tt.id})
		_, cancel := c.Cancel(t.Context(), tt.id)
		_, list := c.List(t.Context(), tt.id)
		for _, err := range []error{seed, cancel, list} {
			if kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: %v, want %s: %s", tt.id, err, tt.kind, tt.text)
			}
		}
	}
	witness := clientOf("w", nil, nil)
	_, seed := witness.AnswerSeed(t.Context(), api.SeedRequest{})
	_, cancel := witness.AnswerCancel()
	_, list := witness.AnswerList()
	for name, err := range map[string]error{"seed": seed, "cancel": cancel, "list": list} {
		if !errors.Is(err, errNoData) {
			t.Errorf("a witness is asked to %s: %v", name, err)
		}
	}
}

// TestListOfAReplicaThatDied holds that the copy of a target that has just died, and still counts as reached, is the
// one of its last status.
func TestListOfAReplicaThatDied(t *testing.T) {
	t.Parallel()
	c := clientOf("n1", nil, nil)
	if ops, err := c.List(t.Context(), "n3"); err != nil || len(ops) != 1 || ops[0].ID != "heard" || ops[0].Absent == "" {
		t.Errorf("%+v, %v", ops, err)
	}
	own, heard, dead := []seeding.Operation{{ID: "own"}}, []seeding.Operation{{ID: "heard"}}, errors.New("it does not answer")
	for name, tt := range map[string]struct {
		reached bool
		own     []seeding.Operation
		err     error
		heard   []seeding.Operation
		want    string
	}{
		"it answers":                            {true, own, nil, heard, "own"},
		"just died":                             {true, nil, dead, heard, "heard"},
		"just died, nothing under way":          {true, nil, dead, nil, ""},
		"out of reach":                          {false, own, nil, heard, "heard"},
		"out of reach, and nothing heard of it": {false, nil, dead, nil, ""},
		"back before it was noticed":            {false, own, nil, nil, "own"},
	} {
		ask := func() ([]seeding.Operation, error) { return tt.own, tt.err }
		ops, err := askOrLast(tt.reached, ask, func() []seeding.Operation { return tt.heard })
		switch {
		case tt.want == "" && !errors.Is(err, dead):
			t.Errorf("%s: %v, %v", name, ops, err)
		case tt.want != "" && (err != nil || len(ops) != 1 || ops[0].ID != tt.want):
			t.Errorf("%s: %v, %v, want %s", name, ops, err, tt.want)
		}
	}
}

// TestLastKnownCopy holds that the other nodes show what a node reported of a copy to it while it does not answer, and
// nothing of a copy that has ended.
func TestLastKnownCopy(t *testing.T) {
	t.Parallel()
	c := secondary().open(t, t.TempDir())
	if said := c.Copying(); said != nil {
		t.Errorf("nothing was ever copied: %s", said)
	}
	_, a, err := c.start(t.Context(), ag.Replica{ID: "n1"}, "the primary", "")
	if err != nil {
		t.Fatal(err)
	}
	c.show(a.op, progress.Progress{Phase: progress.PhaseCopy, Done: 3 << 20, Total: 9 << 20, Wire: 1 << 20, Rate: 1e6, Pace: 1e6})
	status := agent.Status{Copying: c.Copying()}
	heard := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	ops := LastKnown("n3", status, heard)
	if len(ops) != 1 {
		t.Fatalf("%d operations of %s", len(ops), status.Copying)
	}
	if op := ops[0]; op.ID != a.op || op.State != seeding.Seeding || op.Source != "n1" || op.Attempts != 1 || op.ETA != 0 || op.Progress.Rate != 0 ||
		op.Absent != "target n3 not seen since 2026-01-02 03:04:05; goes on when it is back" || Line(op.Progress) != "copying 3 of 9 MiB, 1 MiB on the wire" {
		t.Errorf("the operation is %+v, %s", op, Line(op.Progress))
	}
	if ops := LastKnown("n3", status, time.Time{}); len(ops) != 1 || !strings.Contains(ops[0].Absent, "not seen since this agent began") {
		t.Errorf("by an agent that has just begun: %+v", ops)
	}
	c.finish(a, false, nil)
	if said := c.Copying(); said != nil {
		t.Errorf("the copy is whole: %s", said)
	}
	for _, of := range []string{"", "null", `"another version's"`} {
		if ops := LastKnown("n3", agent.Status{Copying: []byte(of)}, heard); ops != nil {
			t.Errorf("of %q: %+v", of, ops)
		}
	}
}
