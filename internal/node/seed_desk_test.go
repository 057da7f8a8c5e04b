package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/node/membership"
	"github.com/coteriedb/coterie/internal/postgres/seeding"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
)

// deskOf is the desk of a node that has nothing but a directory.
func deskOf(t *testing.T, dir string) *desk {
	t.Helper()
	layout, err := config.NewLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(layout.State(), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := openDesk(&node{self: "n3", members: membership.New("n3", config.Layout{}, slog.New(slog.DiscardHandler)), layout: layout, log: slog.New(slog.DiscardHandler), agent: &agent.Agent{}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestCopiesThatFailAreTriedLater: each failure in a row doubles the pause, up to a minute, and says why; another epoch, or an interruption
// by one, begins anew.
func TestCopiesThatFailAreTriedLater(t *testing.T) {
	t.Parallel()
	d := deskOf(t, t.TempDir())
	fail := func(e ag.Epoch, interrupted bool) time.Duration {
		_, id, _ := d.attempt(t.Context(), ag.Replica{ID: "n1"}, "the primary")
		before := time.Now()
		d.ended(id, e, interrupted, errors.New("the disk is slow"))
		return d.retryAt.Sub(before)
	}
	for i, want := range []time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 1200 * time.Millisecond} {
		if got := fail(1, false); got < want || got > 2*want {
			t.Errorf("after failure %d it waits %v, want %v", i+1, got, want)
		}
	}
	for range 9 {
		fail(1, false)
	}
	if got := fail(1, false); got < retryMost || got > retryMost+30*time.Second {
		t.Errorf("at last it waits %v", got)
	}
	if why := d.BlockedReason(1); !strings.Contains(why, "copy attempt 13 failed: the disk is slow; next at") {
		t.Errorf("withheld: %q", why)
	}
	if why := d.BlockedReason(2); why != "" {
		t.Errorf("withheld in another epoch: %q", why)
	}
	if op, _ := d.journal.Last(); op.State != seeding.Retrying || op.Attempts != 13 || op.Failure == nil || op.Next.IsZero() {
		t.Errorf("the operation is %+v", op)
	}
	fail(2, true)
	if got := fail(2, false); got > 2*retryFirst {
		t.Errorf("after an interruption it waits %v", got)
	}
}

// TestCancelledCopyStaysCancelled: to cancel ends the attempt under way, and no other begins, nor after the agent has begun anew, until
// somebody asks.
func TestCancelledCopyStaysCancelled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := deskOf(t, dir)
	if _, err := d.stop(); err == nil || !strings.Contains(err.Error(), "nothing is being copied to n3") {
		t.Errorf("nothing is under way, and cancelled: %v", err)
	}
	ctx, id, _ := d.attempt(t.Context(), ag.Replica{ID: "n1"}, "the primary")
	op, err := d.stop()
	if err != nil || op.ID != id || op.State != seeding.Cancelled || !errors.Is(context.Cause(ctx), seeding.ErrCancelled) {
		t.Fatalf("%+v, %v; the attempt: %v", op, err, context.Cause(ctx))
	}
	d.ended(id, 1, false, context.Cause(ctx))
	if op, _ := d.journal.Last(); op.State != seeding.Cancelled {
		t.Errorf("afterwards it is %s", op.State)
	}
	for name, d := range map[string]*desk{"at once": d, "by another agent": deskOf(t, dir)} {
		if why := d.BlockedReason(2); !strings.Contains(why, "seeding was cancelled at") || !strings.Contains(why, "coterie seed n3") {
			t.Errorf("withheld %s: %q", name, why)
		}
	}
	if ctx, _, _ := deskOf(t, dir).attempt(t.Context(), ag.Replica{ID: "n1"}, "the primary"); !errors.Is(context.Cause(ctx), seeding.ErrCancelled) {
		t.Error("an attempt that was decided before goes on")
	}
}

// TestOthersTellOfACopyWhoseTargetIsGone: what a node says of a copy to it is shown by the others while it does not answer, as what was heard
// last; what has ended is not.
func TestOthersTellOfACopyWhoseTargetIsGone(t *testing.T) {
	t.Parallel()
	d := deskOf(t, t.TempDir())
	if said := d.copying(); said != nil {
		t.Errorf("nothing was ever copied: %s", said)
	}
	_, id, _ := d.attempt(t.Context(), ag.Replica{ID: "n1"}, "the primary")
	d.show(id, progress.Progress{Phase: progress.PhaseCopy, Done: 3 << 20, Total: 9 << 20, Wire: 1 << 20, Rate: 1e6, Pace: 1e6})
	said := agent.Status{Copying: d.copying()}
	heard := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	rows := seedings(lastCopy("n3", said, heard))
	if len(rows) != 1 {
		t.Fatalf("%d rows of %s", len(rows), said.Copying)
	}
	want := "copying 3 of 9 MiB, 1 MiB on the wire; target n3 not seen since 2026-01-02 03:04:05; goes on when it is back"
	if r := rows[0]; r.ID != id || r.State != "SEEDING" || r.Source != "n1" || r.Attempts != 1 || r.Text != want || r.Left != 0 || r.Rate != 0 {
		t.Errorf("the row is %+v", r)
	}
	if rows := seedings(lastCopy("n3", said, time.Time{})); len(rows) != 1 || !strings.Contains(rows[0].Text, "not seen since this agent began") {
		t.Errorf("by an agent that has just begun: %+v", rows)
	}
	d.ended(id, 1, false, nil)
	if said := d.copying(); said != nil {
		t.Errorf("the copy is whole: %s", said)
	}
	for _, of := range []string{"", "null", `"another version's"`} {
		if ops := lastCopy("n3", agent.Status{Copying: []byte(of)}, heard); ops != nil {
			t.Errorf("of %q: %+v", of, ops)
		}
	}
}

// TestCopyOfWhoHasJustDied: a dead target that is held to be in reach yet has its copy told as one that is known to be out of it has.
func TestCopyOfWhoHasJustDied(t *testing.T) {
	own, heard, dead := []seeding.Operation{{ID: "own"}}, []seeding.Operation{{ID: "heard"}}, errors.New("it does not answer")
	for name, c := range map[string]struct {
		reach bool
		own   []seeding.Operation
		err   error
		heard []seeding.Operation
		want  string
	}{
		"it answers":                            {true, own, nil, heard, "own"},
		"just died":                             {true, nil, dead, heard, "heard"},
		"just died, nothing under way":          {true, nil, dead, nil, ""},
		"out of reach":                          {false, own, nil, heard, "heard"},
		"out of reach, and nothing heard of it": {false, nil, dead, nil, ""},
		"back before it was noticed":            {false, own, nil, nil, "own"},
	} {
		ask := func() ([]seeding.Operation, error) { return c.own, c.err }
		ops, err := tellOrHeard(c.reach, ask, func() []seeding.Operation { return c.heard })
		switch {
		case c.want == "" && !errors.Is(err, dead):
			t.Errorf("%s: %v, %v", name, ops, err)
		case c.want != "" && (err != nil || len(ops) != 1 || ops[0].ID != c.want):
			t.Errorf("%s: %v, %v, want %s", name, ops, err, c.want)
		}
	}
}

// TestFirstViewIsWaitedFor: a question that comes before the agent's first turn waits for it, but neither for ever nor for somebody who has gone.
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
			t.Error("it waits for who has gone")
		}
	})
}
