package clientport

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/listener"
)

// TestDurable holds when a commit at 100 counts as durable on the primary: as many members of the setting in force as
// it requires have flushed it, of the copies that the record names. In every other case durable waits until ctx ends,
// and says why.
func TestDurable(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*fakeNode)
		want   error // nil: durable
	}{
		"one member has it": {nil, nil},
		"nobody is asked for": {func(n *fakeNode) {
			n.view.Local.Sync.P, n.view.Local.Sync.N, n.view.Record.State.K, n.streams = nil, 0, 0, nil
		}, nil},
		"none has it":                        {func(n *fakeNode) { n.streams[0].Flush = 99 }, context.DeadlineExceeded},
		"no stream":                          {func(n *fakeNode) { n.streams = nil }, context.DeadlineExceeded},
		"another copy of that member has it": {func(n *fakeNode) { n.streams[0].Copy = "c9" }, context.DeadlineExceeded},
		"one that does not count has it":     {func(n *fakeNode) { n.streams[0].Member = "n4" }, context.DeadlineExceeded},
		"the record asks for more":           {func(n *fakeNode) { n.view.Record.State.V = n.view.Record.State.V[:1] }, ag.ErrNotCovered},
		"this node does not lead":            {func(n *fakeNode) { n.view.Record.Epoch.Leader = "n2" }, ag.ErrNotLeading},
		"the epoch is not led yet":           {func(n *fakeNode) { n.view.Record.Epoch.Phase = ag.PhaseSeal }, ag.ErrNotLeading},
		"the server takes no writes":         {func(n *fakeNode) { n.view.Local.Server = ag.ServerRecovery }, ag.ErrNotLeading},
		"before the agent's first turn":      {func(n *fakeNode) { n.view = nil }, ag.ErrNotLeading},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := primary()
			n.moved = make(chan struct{})
			if tt.change != nil {
				tt.change(n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began := time.Now()
			err := n.port(t).durable(ctx, 100)
			if !errors.Is(err, tt.want) || tt.want == nil && time.Since(began) != 0 || tt.want != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v after %v, want %v", name, err, time.Since(began), tt.want)
			}
			if len(n.peers.asked) != 0 {
				t.Errorf("%s: it asked %v", name, n.peers.asked)
			}
		})
	}
}

// TestDurableAwaitsMoves holds that a waiting commit is answered as soon as a stream moves, and within durablePoll when
// only the setting does.
func TestDurableAwaitsMoves(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*fakeNode)
		after  time.Duration
	}{
		"a stream moves":      {func(n *fakeNode) { n.streams[0].Flush = 100; close(n.moved) }, 10 * time.Millisecond},
		"the setting changes": {func(n *fakeNode) { n.view.Local.Sync.N, n.view.Local.Sync.P, n.view.Record.State.K = 0, nil, 0 }, durablePoll},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := primary()
			n.moved = make(chan struct{})
			n.streams[0].Flush = 99
			p := n.port(t)
			began := time.Now()
			var took time.Duration
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				err = p.durable(t.Context(), 100)
				took = time.Since(began)
			}()
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
			n.change(func() { tt.change(n) })
			<-done
			if err != nil || took != tt.after {
				t.Errorf("%s: %v after %v, want %v", name, err, took, tt.after)
			}
		})
	}
}

// TestDurableOfASecondary holds which member a secondary asks about a position that it has replayed: the primary that
// it streams from, in the epoch of that stream, and none while no stream is open.
func TestDurableOfASecondary(t *testing.T) {
	t.Parallel()
	n := secondary()
	n.peers.durable = func(to ag.ReplicaID, e ag.Epoch, lsn ag.LSN) (bool, error) {
		if to != "n2" || e != 7 || lsn != 100 {
			t.Errorf("%s is asked about %s in epoch %d", to, lsn, e)
		}
		return true, nil
	}
	if err := n.port(t).durable(t.Context(), 100); err != nil {
		t.Errorf("%v", err)
	}
	for name, tt := range map[string]struct {
		change func(*fakeNode)
		asked  bool
		want   error
	}{
		"the primary says no": {func(n *fakeNode) {
			n.peers.durable = func(ag.ReplicaID, ag.Epoch, ag.LSN) (bool, error) { return false, nil }
		}, true, nil},
		"the primary does not answer": {func(*fakeNode) {}, true, errNoRoute},
		"no stream is open":           {func(n *fakeNode) { n.upstream.Connected = false }, false, ag.ErrNotLeading},
		"of a node that was removed":  {func(n *fakeNode) { n.upstream.Source = "n9" }, false, ag.ErrNotLeading},
		"of itself":                   {func(n *fakeNode) { n.upstream.Source = "n1" }, false, ag.ErrNotLeading},
		"of no source":                {func(n *fakeNode) { n.upstream.Source = "" }, false, ag.ErrNotLeading},
	} {
		n := secondary()
		tt.change(n)
		ok, err := n.port(t).askDurable(t.Context(), 100)
		if ok || !errors.Is(err, tt.want) || (len(n.peers.asked) != 0) != tt.asked {
			t.Errorf("%s: %v, %v; asked %v", name, ok, err, n.peers.asked)
		}
	}
}

// TestDurableForASecondary holds that a primary answers for the epoch in force only: in another one the same position
// is another history.
func TestDurableForASecondary(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*fakeNode)
		epoch  ag.Epoch
		ok     bool
		want   error
	}{
		"durable":                       {nil, 7, true, nil},
		"not durable":                   {func(n *fakeNode) { n.streams = nil }, 7, false, nil},
		"an earlier epoch":              {nil, 6, false, ag.ErrNotLeading},
		"a later epoch":                 {nil, 8, false, ag.ErrNotLeading},
		"another node leads":            {func(n *fakeNode) { n.view.Record.Epoch.Leader = "n2" }, 7, false, ag.ErrNotLeading},
		"a witness":                     {func(n *fakeNode) { n.server = nil }, 7, false, ag.ErrNotLeading},
		"before the agent's first turn": {func(n *fakeNode) { n.view = nil }, 7, false, ag.ErrNotLeading},
	} {
		n := primary()
		if tt.change != nil {
			tt.change(n)
		}
		if ok, err := n.port(t).Durable(tt.epoch, 100); ok != tt.ok || !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
}

// TestProgress holds what a node's position means: of the epoch that it leads, of the epoch whose primary it streams
// from, and nothing while it does neither.
func TestProgress(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		node   *fakeNode
		routes *ag.Routes
		change func(*fakeNode)
		want   listener.Progress
		err    error
	}{
		"the primary":              {primary(), &ag.Routes{Primary: "n1", Epoch: 7}, nil, listener.Progress{Epoch: 7, LSN: 100}, nil},
		"a secondary":              {secondary(), &ag.Routes{Primary: "n2", Epoch: 7}, nil, listener.Progress{Epoch: 7, LSN: 100}, nil},
		"of an earlier epoch":      {secondary(), &ag.Routes{Primary: "n2", Epoch: 7}, func(n *fakeNode) { n.upstream.Epoch = 6 }, listener.Progress{Epoch: 6, LSN: 100}, nil},
		"no stream":                {secondary(), &ag.Routes{Primary: "n2", Epoch: 7}, func(n *fakeNode) { n.upstream.Connected = false }, listener.Progress{}, errNoStream},
		"no routes, and no stream": {primary(), nil, nil, listener.Progress{}, errNoStream},
		"a witness":                {secondary(), nil, func(n *fakeNode) { n.server = nil }, listener.Progress{}, errNoServer},
		"a witness, told it leads": {primary(), &ag.Routes{Primary: "n1"}, func(n *fakeNode) { n.server = nil }, listener.Progress{}, errNoServer},
	} {
		if tt.change != nil {
			tt.change(tt.node)
		}
		p := tt.node.port(t)
		p.routes.Store(tt.routes)
		if got, err := p.progressOf(t.Context(), "n1"); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	n := primary()
	n.peers.progress = func(ag.ReplicaID) (listener.Progress, error) { return listener.Progress{Epoch: 7, LSN: 90}, nil }
	if got, err := n.port(t).progressOf(t.Context(), "n2"); err != nil || got.LSN != 90 || len(n.peers.asked) != 1 || n.peers.asked[0] != "n2" {
		t.Errorf("of another: %+v, %v, asked %v", got, err, n.peers.asked)
	}
	if _, err := n.port(t).progressOf(t.Context(), "n9"); err == nil || len(n.peers.asked) != 1 {
		t.Errorf("of a replica that does not exist: %v, asked %v", err, n.peers.asked)
	}
}

// TestConfirmLead holds that only the quorum's word for this node, and for the epoch whose sessions it serves, lets a
// confirmed read pass.
func TestConfirmLead(t *testing.T) {
	t.Parallel()
	broken := errors.New("no majority")
	for name, tt := range map[string]struct {
		change func(*agent.Snapshot, *ag.Routes, *fakeNode)
		want   error
	}{
		"it leads":                   {nil, nil},
		"another leads":              {func(s *agent.Snapshot, _ *ag.Routes, _ *fakeNode) { s.Record.Epoch.Leader = "n2" }, ag.ErrNotLeading},
		"in a later epoch":           {func(s *agent.Snapshot, _ *ag.Routes, _ *fakeNode) { s.Record.Epoch.Epoch = 8 }, ag.ErrNotLeading},
		"the epoch is being sealed":  {func(s *agent.Snapshot, _ *ag.Routes, _ *fakeNode) { s.Record.Epoch.Phase = ag.PhaseSeal }, ag.ErrNotLeading},
		"its sessions are older":     {func(_ *agent.Snapshot, r *ag.Routes, _ *fakeNode) { r.Epoch = 6 }, ag.ErrNotLeading},
		"the quorum does not answer": {func(_ *agent.Snapshot, _ *ag.Routes, n *fakeNode) { n.readErr = broken }, broken},
	} {
		n, routes := primary(), &ag.Routes{Primary: "n1", Epoch: 7}
		if tt.change != nil {
			tt.change(&n.snap, routes, n)
		}
		p := n.port(t)
		p.routes.Store(routes)
		if err := p.confirmLead(t.Context()); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := primary().port(t).confirmLead(t.Context()); !errors.Is(err, ag.ErrNotLeading) {
		t.Errorf("before any routes: %v", err)
	}
}
