package agent

import (
	"context"

	"github.com/coteriedb/coterie/internal/ag"
)

// SetOpened makes a mistake: the agent believes that it has opened in an epoch.
func (a *Agent) SetOpened(e ag.Epoch) { a.answered.Store(uint64(e)) }

// RunJob runs a long action as the worker does, and takes over its result.
func RunJob(do func(ctx context.Context) (func(), error)) {
	a := &Agent{done: make(chan taskResult, 1)}
	a.work(context.Background(), job{name: "test", budget: startBudget, do: do})
	a.taskEnded(<-a.done)
}

// Act performs one action of a plan.
func (a *Agent) Act(ctx context.Context, act ag.Action) { a.act(ctx, ag.View{}, act) }

// EndJob takes over the result of a long action that never began.
func EndJob() { (&Agent{}).taskEnded(taskResult{name: "sync"}) }
