package operations

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/admin/console"
	"github.com/coteriedb/coterie/internal/admin/ddl"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/etcd"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// opOf returns a failover that was asked for in epoch e.
func opOf(t *testing.T, e ag.Epoch) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(ag.Op{ID: "other", Kind: ag.OpPlanned, To: "b", Epoch: e})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// maintained puts replica b under maintenance.
func maintained(x *etcd.Snapshot) { x.Group.Replicas[1].Options.Maintenance = &ag.Maintenance{} }

// restored makes the primary say that its copy is another one than led.
func restored(x *etcd.Snapshot) {
	x.Record.State.Copy = "A"
	x.Statuses = map[ag.ReplicaID]json.RawMessage{"a": json.RawMessage(`{"copy": "A2", "server": "RECOVERY"}`)}
}

// both makes b and c synchronized, with what each says of itself.
func both(b, c string) func(*etcd.Snapshot) {
	return func(x *etcd.Snapshot) {
		x.Record.State.V = []ag.Member{{ID: "b"}, {ID: "c"}}
		x.Statuses = map[ag.ReplicaID]json.RawMessage{"b": json.RawMessage(b), "c": json.RawMessage(c)}
	}
}

// TestFailoverRefusals holds what is known before a failover begins, with the kind that a command is told and the
// SQLSTATE and number that a statement is told. Each names what to run instead in either language.
func TestFailoverRefusals(t *testing.T) {
	t.Parallel()
	const none, usage, refused, unhealthy = fail.Ordinary, fail.Usage, fail.Refused, fail.Unhealthy
	for _, tt := range []struct {
		name   string
		to     ag.ReplicaID
		force  bool
		change func(*etcd.Snapshot)
		kind   fail.Kind
		state  string
		number int
		target ag.ReplicaID
	}{
		{"to a synchronized one", "b", false, nil, none, "", 0, "b"},
		{"to the first synchronized one", "", false, nil, none, "", 0, "b"},
		{"to any, of which the first still starts", "", false, both(`{"server": "STARTING"}`, `{"server": "RECOVERY"}`), none, "", 0, "c"},
		{"to any, of which no server is known to run", "", false, both("", `{"server": "RECOVERY", "quarantine": "checksums"}`), none, "", 0, "b"},
		{"to any, of which none is synchronized", "", false, func(x *etcd.Snapshot) { x.Record.State.V = nil }, unhealthy, "57P03", 0, ""},
		{"to any, by force, of which none is synchronized", "", true, func(x *etcd.Snapshot) { x.Record.State.V = nil }, unhealthy, "57P03", 0, ""},
		{"to the primary", "a", false, nil, refused, "55000", 41122, ""},
		{"to the primary, by force", "a", true, nil, refused, "55000", 41122, ""},
		{"to the primary, whose copy is another one since, by force", "a", true, restored, none, "", 0, "a"},
		{"to the primary, whose copy is another one since", "a", false, restored, refused, "55000", 41122, ""},
		{"to the one that led last, by force", "a", true, func(x *etcd.Snapshot) { x.Record.Epoch.Phase = ag.PhaseSeal }, none, "", 0, "a"},
		{"to one that is not synchronized", "c", false, nil, refused, "55000", 41142, ""},
		{"to an asynchronous one", "c", false, func(x *etcd.Snapshot) { x.Group.Replicas[2].AvailabilityMode = ag.AsynchronousCommit }, refused, "55000", 41142, ""},
		{"to one that is not synchronized, by force", "c", true, nil, none, "", 0, "c"},
		{"to one under maintenance", "b", false, maintained, refused, "55000", 41142, ""},
		{"to one under maintenance, by force", "b", true, maintained, none, "", 0, "b"},
		{"to any, of which all are under maintenance", "", false, maintained, unhealthy, "57P03", 0, ""},
		{"with nobody to wait for", "b", false, func(x *etcd.Snapshot) { x.Record.State.K = 0 }, refused, "55000", 41142, ""},
		{"to the witness", "w", true, nil, refused, "55000", 41121, ""},
		{"to nobody", "z", true, nil, usage, "42704", 41167, ""},
		{"to one that has not joined", "b", true, func(x *etcd.Snapshot) { x.Group.Replicas[1].Join = ag.NotJoined }, refused, "55000", 41142, ""},
		{"to a node without a part", "b", true, func(x *etcd.Snapshot) { x.Group.Replicas[1].Join = ag.Detached }, usage, "42704", 41167, ""},
		{"while one is under way", "b", false, func(x *etcd.Snapshot) { x.Op = opOf(t, 7) }, unhealthy, "55006", 41113, ""},
		{"while one is under way, by force", "c", true, func(x *etcd.Snapshot) { x.Op = opOf(t, 7) }, unhealthy, "55006", 41113, ""},
		{"after one of an earlier epoch", "b", false, func(x *etcd.Snapshot) { x.Op = opOf(t, 6) }, none, "", 0, "b"},
		{"after one that cannot be read", "b", false, func(x *etcd.Snapshot) { x.Op = json.RawMessage("{") }, none, "", 0, "b"},
		{"without a primary", "b", false, func(x *etcd.Snapshot) { x.Record.Epoch.Phase = ag.PhaseSeal }, unhealthy, "57P03", 0, ""},
		{"without a primary, by force", "b", true, func(x *etcd.Snapshot) { x.Record.Epoch.Phase = ag.PhaseSeal }, none, "", 0, "b"},
	} {
		x := newBed(t).store.x
		if tt.change != nil {
			tt.change(&x)
		}
		to, err := failoverTarget(x, tt.to, tt.force)
		if kind := fail.KindOf(err); kind != tt.kind || to != tt.target || (err == nil) != (tt.target != "") {
			t.Errorf("%s: to %q, %s: %v, want to %q, %s", tt.name, to, kind, err, tt.target, tt.kind)
		}
		if err == nil {
			continue
		}
		var told *console.Error
		if !errors.As(newBed(t).withSQLState(err), &told) || told.State != tt.state || told.Number != tt.number {
			t.Errorf("%s: a statement is told %+v, want %s, %d", tt.name, told, tt.state, tt.number)
			continue
		}
		var command fail.Error
		if !errors.As(err, &command) || command.Number != tt.number || command.Hint == "" || told.Hint == "" || command.Hint == told.Hint ||
			err.Error() != told.Message+" ("+command.Hint+")" {
			t.Errorf("%s: a command is told %q (%s), a statement %q (%s)", tt.name, err, command.Hint, told.Message, told.Hint)
		}
	}
}

// TestFailoverToAnyNamesTheReason holds that nobody is advised to accept a loss where maintenance, or a change of the
// primary, is what keeps the secondaries from leading, nor to wait for an asynchronous one.
func TestFailoverToAnyNamesTheReason(t *testing.T) {
	t.Parallel()
	var to ag.ReplicaID
	for want, change := range map[string]func(*etcd.Snapshot){
		"every synchronized secondary is under maintenance: b (coterie maintenance off NAME": maintained,
		"has no primary at the moment": func(x *etcd.Snapshot) { x.Record.Epoch.Phase, x.Record.State.V = ag.PhaseSeal, nil },
		"no secondary is synchronized": func(x *etcd.Snapshot) { x.Record.State.V = nil },
		"its data movement is suspended, and commits could be lost (coterie replica resume c, and wait until it is SYNCHRONIZED)": func(x *etcd.Snapshot) {
			to, x.Group.Replicas[2].Suspended = "c", true
		},
		"it commits asynchronously, and commits could be lost (coterie replica set c AVAILABILITY_MODE=SYNCHRONOUS_COMMIT": func(x *etcd.Snapshot) {
			to, x.Group.Replicas[2].AvailabilityMode = "c", ag.AsynchronousCommit
		},
	} {
		x := newBed(t).store.x
		to = ""
		change(&x)
		if _, err := failoverTarget(x, to, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

// TestWithSQLState holds the number of the error that every statement may meet, and that others stay as they are.
func TestWithSQLState(t *testing.T) {
	t.Parallel()
	var told fail.Error
	b := newBed(t)
	if !errors.As(b.withSQLState(etcd.ErrNoQuorum), &told) || told.Number != 988 || told.Kind != fail.Unhealthy {
		t.Errorf("no quorum: %+v", told)
	}
	if err := b.withSQLState(etcd.ErrClosed); !errors.Is(err, etcd.ErrClosed) {
		t.Errorf("another: %v", err)
	}
}

// leads has the failover that was asked for succeed: its target leads the next epoch.
func leads(x *etcd.Snapshot) {
	var op ag.Op
	_ = json.Unmarshal(x.Op, &op)
	x.Record.Epoch = ag.EpochRecord{Epoch: x.Record.Epoch.Epoch + 1, Phase: ag.PhaseLead, Leader: op.To}
	x.Op = nil
}

// refuses has the primary, or the target of a forced failover, publish why it does not carry out the failover that was
// asked for, and withdraw it.
func refuses(t *testing.T, outcome func(id string) agent.Outcome) func(x *etcd.Snapshot) {
	return func(x *etcd.Snapshot) {
		var op ag.Op
		_ = json.Unmarshal(x.Op, &op)
		h := outcome(op.ID)
		b, err := json.Marshal(agent.Status{HandOver: &h})
		if err != nil {
			t.Error(err)
		}
		by := ag.ReplicaID("a")
		if op.Kind == ag.OpForced {
			by = op.To
		}
		x.Statuses = map[ag.ReplicaID]json.RawMessage{by: b}
		x.Op = nil
	}
}

// TestFailover requests failovers, and holds the writes to the store and the administrator's answer at the end.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		req   api.FailoverRequest
		then  func(x *etcd.Snapshot) // the event a second after the request
		later func(x *etcd.Snapshot) // the event a second after that
		opErr error
		kind  fail.Kind
		text  string
		to    ag.ReplicaID
		took  time.Duration
	}{
		"planned":               {req: api.FailoverRequest{To: "b", Drain: time.Minute}, then: leads, to: "b", took: time.Second},
		"planned, to any":       {then: leads, to: "b", took: time.Second},
		"forced":                {req: api.FailoverRequest{To: "c", AllowDataLoss: true}, then: leads, to: "c", took: time.Second},
		"not waited for":        {req: api.FailoverRequest{To: "b", NoWait: true}, to: "b"},
		"refused":               {req: api.FailoverRequest{To: "w"}, kind: fail.Refused, text: "is a witness"},
		"asked at once":         {req: api.FailoverRequest{To: "b"}, opErr: etcd.ErrConflict, kind: fail.Unhealthy, text: "somebody else has asked"},
		"forced, asked at once": {req: api.FailoverRequest{To: "c", AllowDataLoss: true}, opErr: etcd.ErrConflict, kind: fail.Unhealthy, text: "every copy but c was suspended"},
		"the store is full":     {req: api.FailoverRequest{To: "b"}, opErr: etcd.ErrNoSpace, kind: fail.Ordinary, text: "ask for the failover"},
		"never ends":            {req: api.FailoverRequest{To: "b", Drain: time.Minute}, kind: fail.Unhealthy, text: "has not ended after 13m0s", took: failoverBudget + time.Minute},
		"forced, never ends":    {req: api.FailoverRequest{To: "c", AllowDataLoss: true}, kind: fail.Unhealthy, text: "has not ended after 1m0s", took: time.Minute},
		"another one is first":  {req: api.FailoverRequest{To: "b"}, then: func(x *etcd.Snapshot) { leads(x); x.Record.Epoch.Leader = "c" }, kind: fail.Unhealthy, text: "was given up and c leads", took: 3 * time.Second},
		"the primary refuses": {
			req: api.FailoverRequest{To: "b"}, kind: fail.Refused, text: "planned failover to b: sessions are open", took: time.Second,
			then: refuses(t, func(id string) agent.Outcome {
				return agent.Outcome{Op: id, Error: "sessions are open", Refused: true}
			}),
		},
		"the primary fails": {
			req: api.FailoverRequest{To: "b"}, kind: fail.Unhealthy, text: "planned failover to b: it hung", took: time.Second,
			then: refuses(t, func(id string) agent.Outcome { return agent.Outcome{Op: id, Error: "it hung"} }),
		},
		"the target of a forced one refuses": {
			req: api.FailoverRequest{To: "c", AllowDataLoss: true}, kind: fail.Refused, took: time.Second,
			text: "forced failover to c: the data directory is EMPTY; every copy but c was suspended",
			then: refuses(t, func(id string) agent.Outcome {
				return agent.Outcome{Op: id, Error: "the data directory is EMPTY", Refused: true}
			}),
		},
		"the target fails": {
			req: api.FailoverRequest{To: "b"}, kind: fail.Unhealthy, text: "a handed over to b, which did not come to lead; c leads now", took: time.Second,
			then: func(x *etcd.Snapshot) {
				refuses(t, func(id string) agent.Outcome { return agent.Outcome{Op: id} })(x)
				x.Record.Epoch = ag.EpochRecord{Epoch: x.Record.Epoch.Epoch + 2, Phase: ag.PhaseLead, Leader: "c"}
			},
		},
		"the request is void before the record tells": {
			req: api.FailoverRequest{To: "b"}, to: "b", took: 2 * time.Second,
			then: refuses(t, func(id string) agent.Outcome { return agent.Outcome{Op: id} }),
			later: func(x *etcd.Snapshot) {
				x.Record.Epoch = ag.EpochRecord{Epoch: x.Record.Epoch.Epoch + 1, Phase: ag.PhaseLead, Leader: "b"}
			},
		},
		"another one's refusal": {
			req: api.FailoverRequest{To: "b"}, kind: fail.Unhealthy, text: "was given up and a leads", took: 3 * time.Second,
			then: refuses(t, func(string) agent.Outcome { return agent.Outcome{Op: "other", Error: "x", Refused: true} }),
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.opErr = tt.opErr
			if tt.then != nil {
				defer time.AfterFunc(time.Second, func() { b.store.alter(tt.then) }).Stop()
			}
			if tt.later != nil {
				defer time.AfterFunc(2*time.Second, func() { b.store.alter(tt.later) }).Stop()
			}
			began := time.Now()
			r, err := b.Failover(t.Context(), tt.req)
			if kind := fail.KindOf(err); kind != tt.kind && !(err == nil && tt.kind == "") || r.To != tt.to || tt.text != "" && (err == nil || !strings.Contains(err.Error(), tt.text)) {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
			if took := time.Since(began).Round(time.Second); took != tt.took {
				t.Errorf("%s: it took %v", name, took)
			}
			held := b.replica("b").Suspended
			if forced := tt.req.AllowDataLoss; held != forced || forced && (b.replica("a").SuspendedBy != ag.SuspendPartner || b.replica("c").Suspended) {
				t.Errorf("%s: %+v", name, b.group().Replicas)
			}
		})
	}
}

// TestFailoverToADeadReplica holds that a replica which is not synchronized and does not answer is not waited for.
func TestFailoverToADeadReplica(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		to    ag.ReplicaID
		reach []ag.ReplicaID
		says  string
	}{
		"it answers":       {"b", []ag.ReplicaID{"b", "c", "w"}, "it is not SYNCHRONIZED, and commits could be lost"},
		"it does not":      {"b", []ag.ReplicaID{"c", "w"}, "it does not answer a"},
		"a witness is one": {"w", []ag.ReplicaID{"c"}, "is a witness"},
	} {
		b := newBed(t)
		b.store.alter(func(x *etcd.Snapshot) { x.Record.State.V = nil })
		b.agent.view.Reach = c.reach
		_, err := b.Failover(t.Context(), api.FailoverRequest{To: c.to})
		if err == nil || fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "wait for it") != (name == "it answers") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForcedFailoverIsRefusedBeforehand: nothing is written for a replica that says that it cannot lead. One under
// quarantine stays suspended, since to be resumed would mean that its copy is to be made anew.
func TestForcedFailoverIsRefusedBeforehand(t *testing.T) {
	t.Parallel()
	for text, st := range map[string]agent.Status{
		"data directory is EMPTY":      {Data: ag.DataEmpty},
		"under quarantine: EIO":        {Data: ag.DataPresent, Wellness: agent.Wellness{Quarantine: "EIO"}},
		"under quarantine: lost fsync": {Data: ag.DataPresent, Server: ag.ServerDown, Wellness: agent.Wellness{Quarantine: "lost fsync"}},
	} {
		b := newBed(t)
		said, err := json.Marshal(st)
		if err != nil {
			t.Fatal(err)
		}
		b.store.alter(func(x *etcd.Snapshot) {
			x.Group.Replicas[2].Suspended = true
			x.Statuses = map[ag.ReplicaID]json.RawMessage{"c": said}
		})
		_, err = b.Failover(t.Context(), api.FailoverRequest{To: "c", AllowDataLoss: true})
		if fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
		if x, _ := b.store.read(); x.Op != nil || !b.replica("c").Suspended || b.replica("b").Suspended {
			t.Errorf("%s: something was written: %+v", text, x.Group.Replicas)
		}
	}
}

// TestFailoverAskedAgain: a request that loses against a write which does not concern it is written again, and so is
// one that the configuration has overtaken.
func TestFailoverAskedAgain(t *testing.T) {
	t.Parallel()
	other := func(s *fakeStore, id string, epoch ag.Epoch) {
		b, err := json.Marshal(ag.Op{ID: id, Kind: ag.OpPlanned, To: "b", Epoch: epoch})
		if err != nil {
			t.Error(err)
		}
		s.alter(func(x *etcd.Snapshot) { x.Op = b })
	}
	for name, tt := range map[string]struct {
		beaten int
		other  func(s *fakeStore)
		stale  int // so many requests are overtaken by a change of the configuration
		asked  int
		text   string // of the error
	}{
		"the last one is cleared": {beaten: 2, asked: 1, other: func(*fakeStore) {}},
		"the last one still stands": {beaten: 1, asked: 1, other: func(s *fakeStore) {
			e, _ := s.read()
			other(s, "old", e.Record.Epoch.Epoch-1)
		}},
		"another one is first": {beaten: 1, text: "somebody else has asked", other: func(s *fakeStore) {
			e, _ := s.read()
			other(s, "theirs", e.Record.Epoch.Epoch)
		}},
		"a failover is first": {beaten: 1, text: "somebody else has asked", other: func(s *fakeStore) {
			s.alter(func(x *etcd.Snapshot) { x.Record.Epoch.Epoch++ })
		}},
		"the configuration changes":    {stale: 3, asked: 4},
		"it changes all the time":      {stale: 100, asked: askAgain + 1, text: "changes all the time"},
		"both at the same time":        {beaten: 1, stale: 1, asked: 2, other: func(*fakeStore) {}},
		"somebody writes all the time": {beaten: 100, text: "somebody else has asked", other: func(*fakeStore) {}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.opBeaten, b.store.other = tt.beaten, func() { tt.other(b.store) }
			stop := make(chan struct{})
			go func() { // the leader
				for seen := 0; ; {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
					b.store.alter(func(x *etcd.Snapshot) {
						if b.store.asked == seen || x.Op == nil {
							return
						}
						if seen = b.store.asked; seen <= tt.stale {
							x.Op, x.OpStale = nil, true
						} else {
							leads(x)
						}
					})
				}
			}()
			_, err := b.Failover(t.Context(), api.FailoverRequest{To: "b"})
			close(stop)
			if b.store.asked != tt.asked || (err == nil) != (tt.text == "") || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%s: asked %d times, %v", name, b.store.asked, err)
			}
		})
	}
}

// TestFailoverNotWaitedFor holds that a failover for which nobody waits leaves a word of its end, also if the epoch has
// overtaken the request, and that it is asked for again if the configuration has.
func TestFailoverNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		then  func(x *etcd.Snapshot) // the event a second after the request
		stale bool
		asked int
		noted string
	}{
		"done": {then: leads, asked: 1, noted: "epoch 8: the failover to b that was asked for WITH NOWAIT is done: b is the primary in epoch 8 after 1"},
		"overtaken": {
			asked: 1, then: func(x *etcd.Snapshot) { leads(x); x.Record.Epoch.Leader = "c" },
			noted: "epoch 7: the failover to b that was asked for WITH NOWAIT has not taken place: the failover to b was given up and c leads",
		},
		"refused": {asked: 1, noted: "has not taken place: planned failover to b: it lags", then: refuses(t, func(id string) agent.Outcome {
			return agent.Outcome{Op: id, Error: "it lags", Refused: true}
		})},
		"made void": {stale: true, then: leads, asked: 2, noted: "is done: b is the primary"},
		"for ever":  {asked: 1, noted: "has not taken place: the failover to b has not ended after"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			ctx, end := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- b.RunRequests(ctx) }()
			if _, err := b.Failover(t.Context(), api.FailoverRequest{To: "b", NoWait: true}); err != nil {
				t.Fatal(err)
			}
			if tt.stale {
				b.store.alter(func(x *etcd.Snapshot) { x.Op, x.OpStale = nil, true })
			}
			if tt.then != nil {
				defer time.AfterFunc(time.Second, func() { b.store.alter(tt.then) }).Stop()
			}
			time.Sleep(failoverBudget + time.Minute)
			synctest.Wait()
			if got := strings.Join(b.status.noted, "; "); len(b.status.noted) != 1 || !strings.Contains(got, tt.noted) || b.store.asked != tt.asked {
				t.Errorf("%s: asked %d times, noted %q, want %q", name, b.store.asked, got, tt.noted)
			}
			end()
			if err := <-over; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFailoverInPlaceOfAnother: a failover can be forced although another one was asked for, once the member that has
// to carry that out does not answer. A planned one cannot.
func TestFailoverInPlaceOfAnother(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		kind  ag.OpKind
		to    ag.ReplicaID
		leads ag.ReplicaID
		reach []ag.ReplicaID
		force bool
		asked int
	}{
		"the primary answers":                         {ag.OpPlanned, "c", "b", []ag.ReplicaID{"b", "c"}, true, 0},
		"the primary does not":                        {ag.OpPlanned, "c", "b", []ag.ReplicaID{"c"}, true, 1},
		"the primary does not, and it is planned":     {ag.OpPlanned, "a", "b", []ag.ReplicaID{"c"}, false, 0},
		"the primary is this node":                    {ag.OpPlanned, "b", "a", nil, true, 0},
		"the target of a forced one answers":          {ag.OpForced, "b", "a", []ag.ReplicaID{"b"}, true, 0},
		"the target of a forced one does not":         {ag.OpForced, "b", "a", []ag.ReplicaID{"c"}, true, 1},
		"the target of a forced one is this node":     {ag.OpForced, "a", "b", nil, true, 0},
		"the target of a forced one is the one asked": {ag.OpForced, "c", "a", nil, true, 1},
	} {
		b := newBed(t)
		op, err := json.Marshal(ag.Op{ID: "other", Kind: tt.kind, To: tt.to, Epoch: 7})
		if err != nil {
			t.Fatal(err)
		}
		b.store.alter(func(x *etcd.Snapshot) { x.Op, x.Record.Epoch.Leader = op, tt.leads })
		b.agent.view.Reach = tt.reach
		_, err = b.Failover(t.Context(), api.FailoverRequest{To: "c", AllowDataLoss: tt.force, NoWait: true})
		if (err == nil) != (tt.asked > 0) || b.store.asked != tt.asked || err != nil && !strings.Contains(err.Error(), "a failover is under way") {
			t.Errorf("%s: asked %d times, %v", name, b.store.asked, err)
		}
	}
}

// TestPlannedFailoverWithoutThePrimary: only the primary carries a planned failover out, so none is asked for while it
// is silent, and one is not waited for when it has died since.
func TestPlannedFailoverWithoutThePrimary(t *testing.T) {
	t.Parallel()
	dies := func(b *bed, silence time.Duration) {
		v := *b.agent.view
		v.Record.Epoch.Leader, v.Reach, v.Silence, v.Profile = "c", []ag.ReplicaID{"b", "w"}, silence, ag.Profiles["default"]
		b.agent.view = &v
	}
	for name, tt := range map[string]struct {
		silence time.Duration
		asked   int
		took    time.Duration
		change  func(x *etcd.Snapshot)
	}{
		"it is silent":                         {silence: 2 * time.Second},
		"it is silent, and one is asked for":   {silence: 2 * time.Second, change: func(x *etcd.Snapshot) { x.Op = opOf(t, 7) }},
		"it has died since":                    {asked: 1, took: time.Second},
		"it renews, and answers another alone": {asked: 1, took: failoverBudget},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBed(t)
			b.store.alter(func(x *etcd.Snapshot) {
				x.Record.Epoch.Leader = "c"
				if tt.change != nil {
					tt.change(x)
				}
			})
			dies(b, tt.silence)
			if tt.took == time.Second {
				defer time.AfterFunc(time.Second, func() { b.store.alter(func(*etcd.Snapshot) { dies(b, time.Minute) }) }).Stop()
			}
			began := time.Now()
			_, err := b.Failover(t.Context(), api.FailoverRequest{To: "b"})
			if took := time.Since(began).Round(time.Second); fail.KindOf(err) != fail.Unhealthy || b.store.asked != tt.asked || took != tt.took {
				t.Errorf("%s: asked %d times, after %v: %v", name, b.store.asked, took, err)
			}
			if dead := strings.Contains(err.Error(), "the primary c does not answer"); dead != (tt.took != failoverBudget) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestFailoverOnAWitness: once only signed values are used, a witness writes nothing of a failover, and names the
// command for a replica.
func TestFailoverOnAWitness(t *testing.T) {
	t.Parallel()
	for _, force := range []bool{false, true} {
		b := newBed(t)
		b.store.alter(func(x *etcd.Snapshot) { x.Group.SignedOnly = true })
		_, err := b.Failover(t.Context(), api.FailoverRequest{To: "b", AllowDataLoss: force})
		if fail.KindOf(err) != fail.Refused || !strings.Contains(err.Error(), "coterie failover --to b") || b.store.x.Op != nil || b.replica("b").Suspended || b.replica("a").Suspended {
			t.Errorf("%v, %s, %+v", err, b.store.x.Op, b.group().Replicas)
		}
	}
}

// TestFailoverWithoutQuorum: nothing is asked for where the record cannot be read.
func TestFailoverWithoutQuorum(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.store.readErr = etcd.ErrNoQuorum
	_, err := b.Failover(t.Context(), api.FailoverRequest{To: "b"})
	if fail.KindOf(err) != fail.Unhealthy || b.store.x.Op != nil || b.agent.woken > 0 {
		t.Errorf("%v, %s", err, b.store.x.Op)
	}
}

// TestRemovedNodeSaysSo holds that a failover and a statement on a node which was removed tell that, and what to run,
// and not that the quorum is lost, also where the node was down when it was removed.
func TestRemovedNodeSaysSo(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.store.readErr, b.status.removed = etcd.ErrNoQuorum, true
	_, failover := b.Failover(t.Context(), api.FailoverRequest{To: "b"})
	_, _, statement := b.run(t, "ALTER AVAILABILITY GROUP DemoAG SET (MAINTENANCE = ON)")
	for what, err := range map[string]error{"failover": failover, "statement": statement} {
		if err == nil || !strings.Contains(err.Error(), "a was removed from the group") || !strings.Contains(err.Error(), "on a member, such as b") || fail.KindOf(err) != fail.Unhealthy {
			t.Errorf("%s: %v", what, err)
		}
	}
	reached := b.agent.view.Reach
	b.agent.view.Reach = nil
	if _, err := b.Failover(t.Context(), api.FailoverRequest{To: "b"}); err == nil || strings.Contains(err.Error(), "such as") {
		t.Errorf("a member that does not answer is recommended: %v", err)
	}
	b.agent.view.Reach = reached
	r, err := console.NewSession(Executor{b.Service}, console.Principal{User: "ann", May: ddl.MayAdminister}).Run(t.Context(), "SELECT name FROM coterie.replicas")
	if err != nil || len(r.Rows) != 1 || len(r.Notices) != 1 || !strings.Contains(r.Notices[0].Message, "a was removed from the group: these rows are what it saw last") || !strings.Contains(r.Notices[0].Message, "coterie join in an empty directory") {
		t.Errorf("a query: %+v, %v", r, err)
	}
}
