package seedjobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// callTimeout bounds a call to another node.
const callTimeout = 10 * time.Second

// errNoData is the answer of a witness.
var errNoData = errors.New("this node holds no data")

// ClientConfig is what a Client needs of its node. View, Snapshot and Heard are the agent's; no function may be nil.
type ClientConfig struct {
	Self     ag.ReplicaID
	Own      func() *Controller // this node's; nil on a witness
	Replica  func(ag.ReplicaID) (ag.Replica, bool)
	View     func() *ag.View
	Snapshot func() *agent.Snapshot
	Heard    func(ag.ReplicaID) time.Time

	// The same calls at another node.
	Seed   func(ctx context.Context, to ag.Replica, req api.SeedRequest) (seeding.Operation, error)
	Cancel func(ctx context.Context, to ag.Replica) (seeding.Operation, error)
	List   func(ctx context.Context, to ag.Replica) ([]seeding.Operation, error)
}

// Client takes requests for the copy of any replica: this node's Controller answers for its own, the other node for
// another. It also answers the calls of other nodes. Its refusals are fail.Error.
type Client struct{ c ClientConfig }

// NewClient returns a client.
func NewClient(c ClientConfig) *Client { return &Client{c} }

// Seed has a replica's copy made anew, or verified.
func (c *Client) Seed(ctx context.Context, req api.SeedRequest) (seeding.Operation, error) {
	own, r, err := c.controllerOf(req.Replica)
	switch {
	case err != nil:
		return seeding.Operation{}, err
	case own != nil:
		return own.Ask(ctx, req)
	}
	return call(ctx, r, func(ctx context.Context) (seeding.Operation, error) { return c.c.Seed(ctx, r, req) })
}

// Cancel ends the copy or the verification that is under way at a replica.
func (c *Client) Cancel(ctx context.Context, id ag.ReplicaID) (seeding.Operation, error) {
	own, r, err := c.controllerOf(id)
	switch {
	case err != nil:
		return seeding.Operation{}, err
	case own != nil:
		return own.Cancel()
	}
	return call(ctx, r, func(ctx context.Context) (seeding.Operation, error) { return c.c.Cancel(ctx, r) })
}

// List returns a replica's copies and verifications, the oldest first. Of a replica that does not answer it returns the
// copy of its last status, if one was under way then.
func (c *Client) List(ctx context.Context, id ag.ReplicaID) ([]seeding.Operation, error) {
	own, r, err := c.controllerOf(id)
	switch {
	case err != nil:
		return nil, err
	case own != nil:
		return own.Operations(), nil
	}
	v := c.c.View()
	ask := func() ([]seeding.Operation, error) {
		return call(ctx, r, func(ctx context.Context) ([]seeding.Operation, error) { return c.c.List(ctx, r) })
	}
	last := func() []seeding.Operation {
		if snap := c.c.Snapshot(); snap != nil {
			return LastKnown(id, snap.Statuses[id], c.c.Heard(id))
		}
		return nil
	}
	return askOrLast(v == nil || slices.Contains(v.Reach, id), ask, last)
}

// askOrLast returns a replica's answer about its copies, or else the last known state of them. A replica that has just
// died still counts as reached for a moment and does not answer.
func askOrLast(reached bool, ask func() ([]seeding.Operation, error), last func() []seeding.Operation) ([]seeding.Operation, error) {
	if !reached {
		if ops := last(); ops != nil {
			return ops, nil
		}
	}
	out, err := ask()
	if err != nil && reached {
		if ops := last(); ops != nil {
			return ops, nil
		}
	}
	return out, err
}

// LastKnown returns the copy to a replica that does not answer as its last status tells it, if one was under way or was
// to be continued. heard is when the replica gave its last sign of life; zero: not since this agent started.
func LastKnown(id ag.ReplicaID, st agent.Status, heard time.Time) []seeding.Operation {
	var op seeding.Operation
	if len(st.Copying) == 0 || json.Unmarshal(st.Copying, &op) != nil || op.ID == "" { // or of another release
		return nil
	}
	since := "this agent began"
	if !heard.IsZero() {
		since = heard.Format(time.DateTime)
	}
	op.ETA, op.Progress.Rate, op.Progress.Pace = 0, 0, 0
	op.Absent = fmt.Sprintf("target %s not seen since %s; goes on when it is back", id, since)
	return []seeding.Operation{op}
}

// controllerOf returns this node's controller if id is this node, and the replica in any case. An id without a copy is
// refused.
func (c *Client) controllerOf(id ag.ReplicaID) (*Controller, ag.Replica, error) {
	r, ok := c.c.Replica(id)
	switch {
	case !ok:
		return nil, r, fail.Numberedf(41167, "the group has no replica %s", id).WithHint("see coterie status")
	case !r.HasData():
		return nil, r, fail.Refusedf("%s is a witness and holds no data", id)
	case id == c.c.Self:
		return c.c.Own(), r, nil
	}
	return nil, r, nil
}

// call asks another node. A refusal there is the same refusal here.
func call[T any](ctx context.Context, to ag.Replica, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	out, err := ask(ctx)
	var known fail.Error
	if errors.As(err, &known) {
		return out, known
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED): // it has not got the request
		return out, fail.Error{Kind: fail.Unhealthy, Hint: "on it: systemctl status coterie, or start its agent", Err: fmt.Errorf("%s does not answer; nothing was changed", to.ID)}
	case err != nil:
		return out, fail.Unhealthyf("ask %s: %v", to.ID, err)
	}
	return out, nil
}

// AnswerSeed answers Seed of another node.
func (c *Client) AnswerSeed(ctx context.Context, req api.SeedRequest) (seeding.Operation, error) {
	return answer(c, func(own *Controller) (seeding.Operation, error) { return own.Ask(ctx, req) })
}

// AnswerCancel answers Cancel of another node.
func (c *Client) AnswerCancel() (seeding.Operation, error) {
	return answer(c, (*Controller).Cancel)
}

// AnswerList answers List of another node.
func (c *Client) AnswerList() ([]seeding.Operation, error) {
	return answer(c, func(own *Controller) ([]seeding.Operation, error) { return own.Operations(), nil })
}

// answer asks this node's controller, and gives its refusals the code that call recognises at the other end.
func answer[T any](c *Client, ask func(*Controller) (T, error)) (none T, err error) {
	own := c.c.Own()
	if own == nil {
		return none, errNoData
	}
	return ask(own)
}
