package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// Bounds: of the events that wait, the time of a command, how often it is looked for events, and for how long the pipes
// of one that was killed are waited for.
const (
	maxWaiting  = 64
	commandTime = 10 * time.Second
	lookEvery   = time.Second
	pipeTime    = time.Second
)

// Event is the document that a command reads from its standard input.
type Event struct {
	Group   string    `json:"group"`
	Node    string    `json:"node"`
	At      time.Time `json:"at"` // by the node's own clock
	Epoch   ag.Epoch  `json:"epoch,omitempty"`
	Kind    string    `json:"kind"`
	What    string    `json:"what"`
	Because string    `json:"because,omitempty"`
}

// Runner runs the commands. Make it with New.
type Runner struct {
	dir    string
	owner  int
	events func() []Event
	log    *slog.Logger

	waiting chan Event
	counts  struct{ done, failed, dropped atomic.Uint64 }
}

// New returns a runner of the commands in dir, which owner runs, for what events returns: what the node remembers, from
// memory, the oldest first.
func New(dir string, owner int, events func() []Event, log *slog.Logger) *Runner {
	return &Runner{dir: dir, owner: owner, events: events, log: log, waiting: make(chan Event, maxWaiting)}
}

// Counts are what a Runner has counted: commands that ended with 0, others, and events that found no place.
type Counts struct{ Done, Failed, Dropped uint64 }

// Counts returns what the runner has counted.
func (r *Runner) Counts() Counts {
	return Counts{r.counts.done.Load(), r.counts.failed.Load(), r.counts.dropped.Load()}
}

// Run runs the commands for what happens from now on, until ctx is done; it kills one that runs then. Without a
// directory there is nothing to do.
func (r *Runner) Run(ctx context.Context) error {
	if _, err := List(r.dir, r.owner); errors.Is(err, fs.ErrNotExist) {
		<-ctx.Done()
		return nil
	}
	var working sync.WaitGroup
	working.Go(func() { r.work(ctx) })
	defer working.Wait()
	began := time.Now()
	told := map[Event]bool{}
	retry.Every(ctx, lookEvery, func() { told = r.look(began, told) })
	return nil
}

// look has the events wait that are new since began, and returns those that are known now.
func (r *Runner) look(began time.Time, told map[Event]bool) map[Event]bool {
	known := map[Event]bool{}
	for _, e := range r.events() {
		before := e.At.Before(began) // by the clock of the boot, where both have a reading of it: a wall clock may be set back
		if e.At = e.At.Round(0).UTC(); before || known[e] {
			continue
		}
		known[e] = true
		if told[e] {
			continue
		}
		select {
		case r.waiting <- e:
		default:
			if r.counts.dropped.Add(1) == 1 {
				r.log.Warn("events happen faster than the commands of hooks.d end; some are left out", "waiting", maxWaiting)
			}
		}
	}
	return known
}

// work runs the commands for one event after the other.
func (r *Runner) work(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.waiting:
			r.tell(ctx, e)
		}
	}
}

// tell runs every command for an event.
func (r *Runner) tell(ctx context.Context, e Event) {
	files, err := List(r.dir, r.owner)
	if err != nil {
		r.counts.failed.Add(1)
		r.log.Warn("no command of hooks.d is run", "err", err)
		return
	}
	input, err := json.Marshal(e)
	if err != nil {
		return
	}
	for _, f := range files {
		if f.Bad != "" || ctx.Err() != nil {
			continue
		}
		began := time.Now()
		if err := r.execute(ctx, f.Name, e, input); err != nil {
			r.counts.failed.Add(1)
			r.log.Warn("a command of hooks.d failed", "command", f.Name, "kind", e.Kind, "took", time.Since(began).Round(time.Millisecond), "err", err)
			continue
		}
		r.counts.done.Add(1)
	}
}

// execute runs a command with the event on its standard input, and nothing of this process but that: no descriptors, no
// environment, no capabilities. Its output is not kept. The processes that it has started end with it, but for those
// that left its process group, as a daemon does.
func (r *Runner) execute(ctx context.Context, name string, e Event, input []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, commandTime, errors.New("it took longer than "+commandTime.String()))
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(r.dir, name))
	c.Dir, c.WaitDelay = r.dir, pipeTime
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "COTERIE_GROUP=" + plain(e.Group), "COTERIE_MEMBER=" + plain(e.Node), "COTERIE_EVENT=" + plain(e.Kind)}
	c.Stdin = bytes.NewReader(input)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	err := c.Start()
	if err == nil {
		// The agent's own score, which it would inherit, has the kernel end PostgreSQL before it when memory runs out.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.Process.Pid), []byte("0"), 0)
		err = c.Wait()
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it left running; usually nothing
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// plain returns a text without bytes that end it or a line.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return -1
		}
		return r
	}, s)
}
