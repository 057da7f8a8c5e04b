package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/node/events"
)

// Bounds: of the events that wait, the time of a command, how often it is looked for events, and for how long the pipes
// of one that was killed are waited for.
const (
	maxWaiting  = 64
	commandTime = 10 * time.Second
	lookEvery   = time.Second
	pipeTime    = time.Second
	stuckTime   = 2 * time.Second // for how long one that was killed, or a directory that is read, is waited for
)

// start is what starts a command, in its directory: $0 and $1. The agent itself neither enters the directory nor
// executes the file: while a new process does that, the Go runtime cannot stop the other goroutines of this one, so
// that a file system which hangs would have the whole agent hang at the next collection of garbage.
const start = `cd "$1" && unset PWD OLDPWD SHLVL && exec "$0"`

// searched is where commands find programs.
const searched = "/usr/local/bin:/usr/bin:/bin"

// Runner runs the commands. Make it with New.
type Runner struct {
	dir   string
	owner int
	feed  *events.Feed // nil: there is no directory
	log   *slog.Logger

	waiting chan events.Event
	counts  struct{ done, failed, dropped atomic.Uint64 }
	stuck   map[string]chan struct{} // by its name, a command that did not end when it was killed; closed when it has
}

// New returns a runner of the commands in dir, which owner runs, for what list returns from now on: what the node
// remembers, from memory, the oldest first.
func New(dir string, owner int, list func() []events.Event, log *slog.Logger) *Runner {
	r := &Runner{dir: dir, owner: owner, log: log, waiting: make(chan events.Event, maxWaiting), stuck: map[string]chan struct{}{}}
	if _, err := List(dir, owner); !errors.Is(err, fs.ErrNotExist) {
		r.feed = events.NewFeed(list)
	}
	return r
}

// Counts are what a Runner has counted: commands that ended with 0, others, and events that found no place.
type Counts struct{ Done, Failed, Dropped uint64 }

// Counts returns what the runner has counted.
func (r *Runner) Counts() Counts {
	return Counts{r.counts.done.Load(), r.counts.failed.Load(), r.counts.dropped.Load()}
}

// Run runs the commands for what has happened since New, until ctx is done; it kills one that runs then. It does not
// wait for a file system that hangs. Where there was no directory there is nothing to do.
func (r *Runner) Run(ctx context.Context) error {
	if r.feed == nil {
		<-ctx.Done()
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.work(ctx)
	}()
	retry.Every(ctx, lookEvery, r.look)
	select {
	case <-ended:
	case <-time.After(2 * stuckTime):
		r.log.Warn("hooks.d does not answer, and is not waited for", "directory", r.dir)
	}
	return nil
}

// look has the events wait that are new.
func (r *Runner) look() {
	for _, e := range r.feed.Next() {
		select {
		case r.waiting <- e:
		default:
			if r.counts.dropped.Add(1) == 1 {
				r.log.Warn("events happen faster than the commands of hooks.d end; some are left out", "waiting", maxWaiting)
			}
		}
	}
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
func (r *Runner) tell(ctx context.Context, e events.Event) {
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
func (r *Runner) execute(ctx context.Context, name string, e events.Event, input []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, commandTime, errors.New("it took longer than "+commandTime.String()))
	defer cancel()
	if former := r.stuck[name]; former != nil {
		select {
		case <-former:
			delete(r.stuck, name)
		default:
			return errors.New("its run for an earlier event was killed and has not ended: the file system of the command, or of what it uses, hangs")
		}
	}
	c := exec.CommandContext(ctx, "/bin/sh", "-c", start, filepath.Join(r.dir, name), r.dir)
	c.WaitDelay = pipeTime
	c.Env = []string{"PATH=" + searched, "LANG=C.UTF-8", "COTERIE_GROUP=" + plain(e.Group), "COTERIE_MEMBER=" + plain(e.Node), "COTERIE_EVENT=" + plain(e.Kind)}
	c.Stdin = bytes.NewReader(input)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	if err := c.Start(); err != nil {
		return err
	}
	// The agent's own score, which it would inherit, has the kernel end PostgreSQL before it when memory runs out.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", c.Process.Pid), []byte("0"), 0)
	err := r.wait(ctx, name, c)
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it left running; usually nothing
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && (exit.ExitCode() == 126 || exit.ExitCode() == 127) {
		said := make(chan string, 1)
		go func() { said <- notStarted(filepath.Join(r.dir, name)) }() // ends when the file system does not hang any more
		select {
		case why := <-said:
			return fmt.Errorf("%w: %s", err, why)
		case <-time.After(stuckTime):
		}
	}
	return err
}

// notStarted returns why a command ended as one does that cannot be started. The command itself may have ended so: a
// shell and env do where a program is not found.
func notStarted(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return "it could not be read afterwards: " + err.Error()
	}
	defer func() { _ = f.Close() }()
	begin := make([]byte, 256) // the kernel reads no more
	n, _ := io.ReadFull(f, begin)
	line, _, _ := bytes.Cut(begin[:n], []byte("\n"))
	script, is := bytes.CutPrefix(line, []byte("#!"))
	words := strings.FieldsFunc(string(script), func(c rune) bool { return c == ' ' || c == '\t' })
	if !is || len(words) == 0 {
		return "it cannot be started here, or is a script in which a program was not found or may not be executed"
	}
	if err := unix.Access(words[0], unix.X_OK); err != nil {
		return fmt.Sprintf("the program %q of its first line cannot be started: %v", words[0], err)
	}
	return "it was started and ended so itself, as a shell or env does where a program is not found (127) or may not be executed (126); its PATH is " + searched
}

// wait waits for the end of a command. One that was killed, and does not end because the kernel waits for a file
// system, is left to itself, and its name is remembered.
func (r *Runner) wait(ctx context.Context, name string, c *exec.Cmd) error {
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = c.Wait()
	}()
	select {
	case <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case <-ended:
	case <-time.After(stuckTime):
		r.stuck[name] = ended
	}
	return context.Cause(ctx)
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
