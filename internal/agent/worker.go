package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
)

// retryPause keeps an action that failed from being tried again at every turn.
const retryPause = 300 * time.Millisecond

// task is the one long action under way.
type task struct {
	name   string
	epoch  ag.Epoch // it is cancelled when the record leaves this epoch
	cancel context.CancelCauseFunc
	since  time.Duration
}

type taskResult struct {
	name    string
	applied func() // run by the loop: what the action learned
	err     error
}

// work starts a long action unless one is under way. f runs outside the loop; what it returns, with or without an error, is run by
// the loop when it has ended.
func (a *Agent) work(ctx context.Context, name string, e ag.Epoch, budget time.Duration, f func(context.Context) (func(), error)) {
	if a.task != nil || a.failed[name] > boottime.Now() {
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	a.task = &task{name: name, epoch: e, cancel: cancel, since: boottime.Now()}
	a.children.Go(func() {
		ctx, stop := context.WithTimeoutCause(ctx, budget, fmt.Errorf("%s did not end within %v", name, budget))
		defer stop()
		applied, err := f(ctx)
		if err != nil && ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		a.done <- taskResult{name, applied, err}
	})
}

func (a *Agent) cancelTask(why string) {
	if a.task != nil {
		a.task.cancel(errors.New(why))
	}
}

func (a *Agent) taskEnded(r taskResult) {
	took := boottime.Now() - a.task.since
	a.task.cancel(nil)
	a.task = nil
	a.progress.Store(nil)
	if r.err != nil {
		a.log.Warn("action failed", "action", r.name, "after", took.Round(time.Millisecond), "err", r.err)
		pause := retryPause
		if r.name == "sync" { // a stream that has just begun is not ready to prove anything; clients wait for it
			pause = retryPause / 10
		}
		a.failed[r.name] = boottime.Now() + pause
	} else if r.name != "sync" {
		a.log.Info("action done", "action", r.name, "took", took.Round(time.Millisecond))
	}
	if r.applied != nil {
		r.applied()
	}
}

func (a *Agent) showProgress(s string) { a.progress.Store(&s) }
