package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/catalog"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
)

// seedCall bounds a question about seeding to another node.
const seedCall = 10 * time.Second

// Seed has a replica's copy made anew, or verified.
func (m *admin) Seed(ctx context.Context, req api.SeedRequest) (any, error) {
	return m.seedOp(ctx, "seed", req.Replica, req)
}

// CancelSeeding ends a copy or a verification.
func (m *admin) CancelSeeding(ctx context.Context, id ag.ReplicaID) (any, error) {
	return m.seedOp(ctx, "seed-cancel", id, struct{}{})
}

// Seedings lists a replica's copies and verifications; of one that is out of reach the copy that was under way, as it was last heard of.
func (m *admin) Seedings(ctx context.Context, id ag.ReplicaID) (any, error) {
	d, r, err := m.deskOf(id)
	if err != nil || d != nil {
		return operationsOf(d), err
	}
	v := m.n.agent.View()
	ask := func() (out []seeding.Operation, err error) {
		err = m.askDesk(ctx, r, "seedings", struct{}{}, &out)
		return out, err
	}
	last := func() []seeding.Operation {
		if snap := m.n.agent.Snapshot(); snap != nil {
			return lastCopy(id, snap.Statuses[id], m.n.agent.Heard(id))
		}
		return nil
	}
	return tellOrHeard(v == nil || slices.Contains(v.Reach, id), ask, last)
}

// tellOrHeard returns what a replica tells of its copies, or else what was last heard of them: who has just died is held to be in reach for a
// moment yet, and does not answer.
func tellOrHeard(reach bool, ask func() ([]seeding.Operation, error), last func() []seeding.Operation) ([]seeding.Operation, error) {
	if !reach {
		if ops := last(); ops != nil {
			return ops, nil
		}
	}
	out, err := ask()
	if err != nil && reach {
		if ops := last(); ops != nil {
			return ops, nil
		}
	}
	return out, err
}

// lastCopy is the copy to a replica that does not answer, if one was under way or to go on: as it said itself before. heard is when it gave its
// last sign of life; zero: not since this agent started.
func lastCopy(id ag.ReplicaID, st agent.Status, heard time.Time) []seeding.Operation {
	var op seeding.Operation
	if len(st.Copying) == 0 || json.Unmarshal(st.Copying, &op) != nil || op.ID == "" { // that of another version
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

func operationsOf(d *desk) []seeding.Operation {
	if d == nil {
		return nil
	}
	return d.operations()
}

func (m *admin) seedOp(ctx context.Context, method string, id ag.ReplicaID, body any) (any, error) {
	d, r, err := m.deskOf(id)
	if err != nil {
		return nil, err
	}
	if d != nil {
		if req, ok := body.(api.SeedRequest); ok {
			return d.ask(ctx, req)
		}
		return d.stop()
	}
	var op seeding.Operation
	return &op, m.askDesk(ctx, r, method, body, &op)
}

// deskOf returns this node's own desk, or the replica whose it is.
func (m *admin) deskOf(id ag.ReplicaID) (*desk, ag.Replica, error) {
	r, ok := m.n.members.Replica(id)
	switch {
	case !ok:
		return nil, r, api.Refused(fmt.Sprintf("the group has no replica %s; see coterie status", id))
	case !r.HasData():
		return nil, r, api.Refused(fmt.Sprintf("%s is a witness and holds no data", id))
	case id == m.n.self:
		return m.n.desk, r, nil
	}
	return nil, r, nil
}

func (m *admin) askDesk(ctx context.Context, r ag.Replica, method string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, seedCall)
	defer cancel()
	err := m.n.control.Call(ctx, r, method, body, out)
	var remote *endpoint.RemoteError
	if errors.As(err, &remote) {
		if kind, ok := fail.KindOfCode(remote.Code); ok {
			return fail.Error{Kind: kind, Err: errors.New(remote.Message)}
		}
	}
	if err != nil {
		return api.Unhealthy(fmt.Sprintf("ask %s: %v", r.ID, err))
	}
	return nil
}

// serveDesk offers this node's desk to the others.
func (n *node) serveDesk() {
	handle := func(method string, f func(ctx context.Context, body json.RawMessage) (any, error)) {
		n.handle(method, func(ctx context.Context, _ certs.Identity, body json.RawMessage) (any, error) {
			if n.desk == nil {
				return nil, errors.New("this node holds no data")
			}
			out, err := f(ctx, body)
			var known fail.Error
			if errors.As(err, &known) {
				return nil, &endpoint.RemoteError{Code: known.Kind.Code(), Message: known.Error()}
			}
			return out, err
		})
	}
	handle("seed", func(ctx context.Context, body json.RawMessage) (any, error) {
		var req api.SeedRequest
		if err := json.Unmarshal(body, &req); err != nil {
			return nil, err
		}
		return n.desk.ask(ctx, req)
	})
	handle("seed-cancel", func(context.Context, json.RawMessage) (any, error) { return n.desk.stop() })
	handle("seedings", func(context.Context, json.RawMessage) (any, error) { return n.desk.operations(), nil })
}

// seedings are the copies among operations as the views show them.
func seedings(ops []seeding.Operation) []catalog.Seeding {
	var out []catalog.Seeding
	for _, op := range ops {
		if op.Report != nil {
			continue // a verification copies nothing
		}
		p := op.Progress
		p.Waiting = cmp.Or(op.Absent, p.Waiting)
		s := catalog.Seeding{
			ID: op.ID, Source: op.Source, State: string(op.State), Started: op.Started, Ended: op.Ended, Attempts: op.Attempts, FailedAt: op.FailedAt,
			Text: seedProgress(p), Done: p.Done, Total: p.Total, Wire: p.Wire, Rate: p.Rate, Disk: p.DiskWait, Net: p.NetWait, Packed: p.Packed,
		}
		if op.State == seeding.Seeding {
			s.Left = p.ETA()
		}
		if op.Failure != nil {
			s.Code, s.Failure, s.Errno = op.Failure.Code, op.Failure.Text, op.Failure.Errno
		}
		out = append(out, s)
	}
	return out
}

// seed is SEED REPLICA: a copy that is there is compared as a whole and replaced where it differs. It returns once the copy is asked for.
func (l *language) seed(ctx context.Context, s ddl.Statement, req api.SeedRequest) (console.Result, error) {
	op, err := (&admin{l.n}).Seed(ctx, req)
	return seedResult(s, op), err
}

func seedResult(s ddl.Statement, op any) console.Result {
	r := console.Result{Tag: s.Verb()}
	if o, ok := op.(*seeding.Operation); ok {
		op = *o
	}
	if o, ok := op.(seeding.Operation); ok {
		r.Notices = []console.Notice{{
			Severity: "NOTICE", Message: fmt.Sprintf("%s: %s (operation %s); see sys.dm_hadr_physical_seeding_stats", o.Target, strings.ToLower(string(o.State)), o.ID),
		}}
	}
	return r
}
