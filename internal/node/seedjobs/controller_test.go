package seedjobs

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/pagesum"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// fakeNode is the node around a controller: the agent's view, and how often the agent was woken.
type fakeNode struct {
	view  *ag.View
	snap  *agent.Snapshot
	woken int
}

// open returns the controller of n3, a secondary of n1 in the group of n, with its state in dir.
func (n *fakeNode) open(t *testing.T, dir string) *Controller {
	t.Helper()
	c, err := Open(Config{
		Self: "n3", StateDir: dir, Logger: slog.New(slog.DiscardHandler), Data: filepath.Join(dir, "data"),
		View:     func() *ag.View { return n.view },
		Snapshot: func() *agent.Snapshot { return n.snap },
		Wake:     func() { n.woken++ },
		Routes:   func() *ag.Routes { return &ag.Routes{Primary: "n1", WriteOpen: true} },
		Replica: func(id ag.ReplicaID) (ag.Replica, bool) {
			if n.view == nil {
				return ag.Replica{}, false
			}
			return n.view.Group.Replica(id)
		},
		ForgetRewind: func() error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// secondary returns a node whose agent sees n3 as a member without a copy, behind the primary n1.
func secondary() *fakeNode {
	v := &ag.View{Self: "n3", Reach: []ag.ReplicaID{"n1", "n2"}}
	v.Group.Name = "sales"
	v.Group.Replicas = []ag.Replica{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}}
	v.Record.Epoch.Leader, v.Record.Epoch.Epoch, v.Record.Epoch.Phase = "n1", 7, ag.PhaseLead
	v.Local.Data, v.Local.Copy = ag.DataEmpty, "c1"
	return &fakeNode{view: v, snap: &agent.Snapshot{}}
}

// kindOf returns the kind of a refusal; "" of nil and of any other error.
func kindOf(err error) string {
	if kind := fail.KindOf(err); kind != fail.Ordinary {
		return string(kind)
	}
	return ""
}

// TestRequestIsKeptUntilItIsMet holds that a request is on disk before it is acted on, names the copy that it replaces,
// and is removed once a copy was made.
func TestRequestIsKeptUntilItIsMet(t *testing.T) {
	t.Parallel()
	dir, n := t.TempDir(), secondary()
	c := n.open(t, dir)
	op, err := c.Ask(t.Context(), api.SeedRequest{})
	if err != nil || op.State != seeding.Pending || op.Target != "n3" || n.woken != 1 {
		t.Fatalf("%+v, %v; woken %d times", op, err, n.woken)
	}
	again, err := c.Ask(t.Context(), api.SeedRequest{})
	if err != nil || again.ID != op.ID {
		t.Errorf("asked again before it began: %+v, %v", again, err)
	}
	for name, c := range map[string]*Controller{"this process": c, "the next process": n.open(t, dir)} {
		if why := c.ReseedReason("c1"); why != "an operator asked for a new copy" {
			t.Errorf("%s: %q", name, why)
		}
		if why := c.ReseedReason("c2"); why != "" {
			t.Errorf("%s: of a copy that was not meant: %q", name, why)
		}
	}
	c.run = func(_ context.Context, o seeding.Options) (seeding.Result, error) {
		return seeding.Result{Copy: "c2"}, nil
	}
	if cp, err := c.Seed(t.Context(), agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Begins: noted}, func(string) {}); err != nil || cp != "c2" {
		t.Fatalf("%q, %v", cp, err)
	}
	if why := c.ReseedReason("c1"); why != "" {
		t.Errorf("it is asked for still: %q", why)
	}
	if _, err := os.Stat(c.file()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file of the request: %v", err)
	}
	if op, _ := c.journal.Last(); op.State != seeding.Completed || op.Source != "n1" || op.Ended.IsZero() {
		t.Errorf("the operation is %+v", op)
	}
}

// TestRequestThatCannotBeRead holds that a node does not start without knowing whether its seeding was cancelled.
func TestRequestThatCannotBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "seed-wish.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Self: "n3", StateDir: dir, Logger: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "seed-wish.json")+" and cannot be read") {
		t.Errorf("%v", err)
	}
}

// TestRequestNotSaved holds that a request that is not on disk does not exist.
func TestRequestNotSaved(t *testing.T) {
	t.Parallel()
	n := secondary()
	c := n.open(t, t.TempDir())
	c.StateDir = filepath.Join(c.StateDir, "absent")
	if _, err := c.Ask(t.Context(), api.SeedRequest{}); err == nil || !strings.Contains(err.Error(), "remember what was asked") {
		t.Errorf("%v", err)
	}
	if why := c.ReseedReason("c1"); why != "" || n.woken != 0 || len(c.Operations()) != 0 {
		t.Errorf("it is asked for: %q, woken %d times, %d operations", why, n.woken, len(c.Operations()))
	}
}

// TestRefusedRequests holds every reason for which a copy cannot be asked for, and that none of them leaves a request.
func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	present := func(v *ag.View) { v.Local.Data = ag.DataPresent }
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("17\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(*ag.View)
		req    api.SeedRequest
		kind   string // "": taken
		text   string
	}{
		"no copy":                   {nil, api.SeedRequest{}, "", ""},
		"a whole copy, with --full": {present, api.SeedRequest{Full: true}, "", ""},
		"a directory to begin with": {nil, api.SeedRequest{From: data}, "", ""},
		"a whole copy":              {present, api.SeedRequest{}, "refused", "n3 holds a whole copy"},
		"the primary":               {func(v *ag.View) { v.Record.Epoch.Leader = "n3" }, api.SeedRequest{Full: true}, "refused", "n3 is the primary"},
		"suspended":                 {func(v *ag.View) { v.Group.Replicas[2].Suspended = true }, api.SeedRequest{}, "refused", "coterie replica resume n3 first"},
		"denied":                    {func(v *ag.View) { v.Group.Replicas[2].Options.NoSeeding = true }, api.SeedRequest{}, "refused", "[sales] GRANT CREATE ANY DATABASE"},
		"a foreign directory":       {func(v *ag.View) { v.Local.Data = ag.DataForeign }, api.SeedRequest{Full: true}, "refused", "move it away yourself"},
		"a relative path":           {nil, api.SeedRequest{From: "data"}, "usage", "not the absolute path"},
		"a path without a copy":     {nil, api.SeedRequest{From: t.TempDir()}, "usage", "not the absolute path"},
		"a verification, no server": {present, api.SeedRequest{Verify: true}, "unhealthy", "the server of n3 does not run"},
	} {
		n := secondary()
		if tt.change != nil {
			tt.change(n.view)
		}
		c := n.open(t, t.TempDir())
		op, err := c.Ask(t.Context(), tt.req)
		if tt.kind == "" {
			if err != nil || op.State != seeding.Pending {
				t.Errorf("%s: %+v, %v", name, op, err)
			}
			continue
		}
		if kindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %s: %s", name, err, tt.kind, tt.text)
		}
		if len(c.Operations()) != 0 || c.request != (Request{}) || n.woken != 0 {
			t.Errorf("%s: it left %+v, %+v", name, c.Operations(), c.request)
		}
	}
}

// TestRequestsBesideAnAttempt holds what may be asked while a copy is being made: the same again, and nothing that
// would need another.
func TestRequestsBesideAnAttempt(t *testing.T) {
	t.Parallel()
	c := secondary().open(t, t.TempDir())
	_, a, err := c.start(t.Context(), ag.Replica{ID: "n1"}, "the primary", "")
	if err != nil {
		t.Fatal(err)
	}
	if op, err := c.Ask(t.Context(), api.SeedRequest{}); err != nil || op.ID != a.op {
		t.Errorf("the same again: %+v, %v", op, err)
	}
	for name, req := range map[string]api.SeedRequest{"--full": {Full: true}, "--from": {From: "/srv/backup"}, "--verify": {Verify: true}} {
		if _, err := c.Ask(t.Context(), req); kindOf(err) != "unhealthy" || !strings.Contains(err.Error(), "a copy to n3 is under way") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPauseAfterFailure holds that each failure in a row doubles the pause, up to a minute, and that another epoch or
// an interruption begins anew.
func TestPauseAfterFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := secondary().open(t, t.TempDir())
		fail := func(e ag.Epoch, interrupted bool) time.Duration {
			_, a, err := c.start(t.Context(), ag.Replica{ID: "n1"}, "the primary", "")
			if err != nil {
				t.Error(err)
			}
			a.epoch = e
			c.finish(a, interrupted, errors.New("the disk is slow"))
			return time.Until(c.retryAt)
		}
		for i, want := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 1200 * time.Millisecond} {
			if got := fail(1, false); got != want {
				t.Errorf("after failure %d the pause is %v, want %v", i+1, got, want)
			}
		}
		for range 9 {
			fail(1, false)
		}
		if got := fail(1, false); got != time.Minute {
			t.Errorf("the longest pause is %v", got)
		}
		if why := c.BlockedReason(1); !strings.Contains(why, "copy attempt 13 failed: the disk is slow; next at") {
			t.Errorf("blocked: %q", why)
		}
		if why := c.BlockedReason(2); why != "" {
			t.Errorf("blocked in another epoch: %q", why)
		}
		if op, _ := c.journal.Last(); op.State != seeding.Retrying || op.Attempts != 13 || op.Failure == nil || op.Next.IsZero() {
			t.Errorf("the operation is %+v", op)
		}
		time.Sleep(time.Minute)
		if why := c.BlockedReason(1); why != "" {
			t.Errorf("blocked after the pause: %q", why)
		}
		fail(2, true)
		if op, _ := c.journal.Last(); op.Failure.State != "INTERRUPTED" || op.Failure.Code != 207 {
			t.Errorf("after an interruption the failure is %+v", op.Failure)
		}
		if got := fail(2, false); got != 300*time.Millisecond {
			t.Errorf("after an interruption the pause is %v", got)
		}
		if _, err := c.Ask(t.Context(), api.SeedRequest{}); err != nil || c.BlockedReason(2) != "" {
			t.Errorf("an operator asks, %v: %q", err, c.BlockedReason(2))
		}
	})
}

// TestCancelledCopyStaysCancelled holds that Cancel ends the attempt under way, and that no other begins before an
// operator asks, also after a restart of the agent.
func TestCancelledCopyStaysCancelled(t *testing.T) {
	t.Parallel()
	dir, n := t.TempDir(), secondary()
	c := n.open(t, dir)
	if _, err := c.Cancel(); kindOf(err) != "refused" || !strings.Contains(err.Error(), "nothing is being copied to n3") {
		t.Errorf("nothing is under way, and cancelled: %v", err)
	}
	ctx, a, _ := c.start(t.Context(), ag.Replica{ID: "n1"}, "the primary", "")
	op, err := c.Cancel()
	if err != nil || op.ID != a.op || op.State != seeding.Cancelled || !errors.Is(context.Cause(ctx), seeding.ErrCancelled) {
		t.Fatalf("%+v, %v; the attempt: %v", op, err, context.Cause(ctx))
	}
	c.finish(a, false, context.Cause(ctx))
	if op, _ := c.journal.Last(); op.State != seeding.Cancelled {
		t.Errorf("afterwards it is %s", op.State)
	}
	for name, c := range map[string]*Controller{"this process": c, "the next process": n.open(t, dir)} {
		if why := c.BlockedReason(2); !strings.Contains(why, "seeding was cancelled at") || !strings.Contains(why, "coterie replica seed n3") {
			t.Errorf("%s: blocked: %q", name, why)
		}
	}
	next := n.open(t, dir)
	if ctx, _, _ := next.start(t.Context(), ag.Replica{ID: "n1"}, "the primary", ""); !errors.Is(context.Cause(ctx), seeding.ErrCancelled) {
		t.Error("an attempt that was decided before continues")
	}
	next.cancel = nil
	if _, err := next.Ask(t.Context(), api.SeedRequest{}); err != nil || next.BlockedReason(2) != "" {
		t.Errorf("an operator asks, %v: %q", err, next.BlockedReason(2))
	}
}

// TestCancelledRequestLeavesAWholeCopy holds that a request that has not begun is dropped, and that a node with a copy
// is not kept from seeding later.
func TestCancelledRequestLeavesAWholeCopy(t *testing.T) {
	t.Parallel()
	n := secondary()
	n.view.Local.Data = ag.DataPresent
	c := n.open(t, t.TempDir())
	if _, err := c.Ask(t.Context(), api.SeedRequest{Full: true}); err != nil {
		t.Fatal(err)
	}
	if op, err := c.Cancel(); err != nil || op.State != seeding.Cancelled {
		t.Errorf("%+v, %v", op, err)
	}
	if c.request != (Request{}) || c.BlockedReason(7) != "" {
		t.Errorf("%+v, blocked: %q", c.request, c.BlockedReason(7))
	}
}

// TestVoidRequest holds that a request is dropped once its node leads, and that its operation has failed.
func TestVoidRequest(t *testing.T) {
	t.Parallel()
	n := secondary()
	c := n.open(t, t.TempDir())
	if _, err := c.Ask(t.Context(), api.SeedRequest{}); err != nil {
		t.Fatal(err)
	}
	c.dropOvertaken()
	if c.request == (Request{}) {
		t.Error("it is dropped while another node leads")
	}
	n.view.Record.Epoch.Leader = "n3"
	c.dropOvertaken()
	op, _ := c.journal.Last()
	if c.request != (Request{}) || op.State != seeding.Failed || op.Failure == nil || op.Failure.Text != "this node has become the primary" {
		t.Errorf("%+v, %+v", c.request, op)
	}
}

// TestVerification holds the outcomes of a verification that finds nothing, one that finds damage, one that fails and
// one that is cancelled before it begins.
func TestVerification(t *testing.T) {
	t.Parallel()
	broken := errors.New("the server is gone")
	for name, tt := range map[string]struct {
		report pagesum.Report
		err    error
		cancel bool
		want   seeding.State
	}{
		"sound":     {pagesum.Report{}, nil, false, seeding.Completed},
		"fails":     {pagesum.Report{}, broken, false, seeding.Failed},
		"cancelled": {pagesum.Report{}, seeding.ErrCancelled, true, seeding.Cancelled},
	} {
		n := secondary()
		n.view.Local.Data, n.view.Local.Server = ag.DataPresent, ag.ServerRecovery
		c := n.open(t, t.TempDir())
		c.check = func(ctx context.Context, o source.VerifyOptions) (pagesum.Report, error) {
			if o.Data != c.Data || errors.Is(context.Cause(ctx), seeding.ErrCancelled) != tt.cancel {
				t.Errorf("%s: it verifies %q, %v", name, o.Data, context.Cause(ctx))
			}
			return tt.report, tt.err
		}
		op, err := c.Ask(t.Context(), api.SeedRequest{Verify: true})
		if err != nil || op.State != seeding.Verifying {
			t.Fatalf("%s: %+v, %v", name, op, err)
		}
		if again, err := c.Ask(t.Context(), api.SeedRequest{Verify: true}); err != nil || again.ID != op.ID {
			t.Errorf("%s: asked twice: %+v, %v", name, again, err)
		}
		if tt.cancel {
			if _, err := c.Cancel(); err != nil || c.BlockedReason(7) != "" {
				t.Errorf("%s: %v, blocked: %q", name, err, c.BlockedReason(7))
			}
		}
		c.verifyOnce(t.Context(), <-c.verify)
		if op, _ := c.journal.Last(); op.State != tt.want || op.Report == nil || (op.Failure != nil) != (tt.want == seeding.Failed) {
			t.Errorf("%s: %+v", name, op)
		}
		if c.stop != nil {
			t.Errorf("%s: it can be cancelled still", name)
		}
	}
}

// TestCopyBesideAVerification: a copy that begins while the copy before it is verified, and outlives that, ends in
// order and can be cancelled.
func TestCopyBesideAVerification(t *testing.T) {
	t.Parallel()
	for _, cancelled := range []bool{false, true} {
		n := secondary()
		n.view.Local.Data, n.view.Local.Server = ag.DataPresent, ag.ServerRecovery
		c := n.open(t, t.TempDir())
		begun, end, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
		c.check = func(context.Context, source.VerifyOptions) (pagesum.Report, error) {
			close(begun)
			<-end
			return pagesum.Report{}, errors.New("the server is gone")
		}
		if _, err := c.Ask(t.Context(), api.SeedRequest{Verify: true}); err != nil {
			t.Fatal(err)
		}
		go func() { // ends with the verification
			defer close(over)
			c.verifyOnce(t.Context(), <-c.verify)
		}()
		<-begun
		c.run = func(ctx context.Context, _ seeding.Options) (seeding.Result, error) {
			close(end)
			<-over
			if cancelled {
				if _, err := c.Cancel(); err != nil {
					t.Error(err)
				}
			}
			return seeding.Result{}, context.Cause(ctx)
		}
		_, err := c.Seed(t.Context(), agent.SeedJob{From: ag.Replica{ID: "n1"}, Epoch: 7, Begins: noted}, func(string) {})
		op, _ := c.journal.Last()
		if errors.Is(err, seeding.ErrCancelled) != cancelled || (err != nil) != cancelled || (op.State == seeding.Cancelled) != cancelled || !op.State.Ended() {
			t.Errorf("cancelled %t: %+v, %v", cancelled, op, err)
		}
	}
}

// TestVerificationBehindACancelledOne holds that a verification that cannot be queued leaves no operation behind.
func TestVerificationBehindACancelledOne(t *testing.T) {
	t.Parallel()
	n := secondary()
	n.view.Local.Data, n.view.Local.Server = ag.DataPresent, ag.ServerRecovery
	c := n.open(t, t.TempDir())
	if _, err := c.Ask(t.Context(), api.SeedRequest{Verify: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Cancel(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ask(t.Context(), api.SeedRequest{Verify: true}); kindOf(err) != "unhealthy" || !strings.Contains(err.Error(), "about to begin") {
		t.Errorf("%v", err)
	}
	if ops := c.Operations(); len(ops) != 1 || ops[0].State != seeding.Cancelled {
		t.Errorf("the operations are %+v", ops)
	}
	<-c.verify
	if op, err := c.Ask(t.Context(), api.SeedRequest{Verify: true}); err != nil || op.State != seeding.Verifying {
		t.Errorf("once the queue is empty: %+v, %v", op, err)
	}
}

// TestFirstViewIsWaitedFor holds that a request that comes before the agent's first turn waits for it, but not longer
// than firstViewPatience and not for a caller who has gone.
func TestFirstViewIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		after := func(d time.Duration) func() *ag.View {
			began = time.Now()
			return func() *ag.View {
				if time.Since(began) < d {
					return nil
				}
				return new(ag.View)
			}
		}
		for first, want := range map[time.Duration]time.Duration{0: 0, time.Second: time.Second, time.Hour: firstViewPatience} {
			v := firstView(t.Context(), after(first))
			if took := time.Since(began); (v != nil) != (first < firstViewPatience) || took != want {
				t.Errorf("the first turn ends after %v: a view %v after %v", first, v != nil, took)
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if v := firstView(gone, after(time.Hour)); v != nil || time.Since(began) != 0 {
			t.Error("it waits for a caller who has gone")
		}
		c := (&fakeNode{}).open(t, t.TempDir())
		if _, err := c.Ask(t.Context(), api.SeedRequest{}); kindOf(err) != "unhealthy" || !strings.Contains(err.Error(), "does not know the group yet") {
			t.Errorf("without a view: %v", err)
		}
	})
}
