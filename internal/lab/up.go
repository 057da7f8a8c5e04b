package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// lookPause is the time between two looks at the nodes while the lab waits for them.
const lookPause = 100 * time.Millisecond

// Up makes the lab, or starts the nodes of an existing one that are down, and returns when every replica is
// SYNCHRONIZED. If that fails, it takes everything down again, unless Options.Keep.
func Up(ctx context.Context, o Options) (*Lab, error) {
	o.setDefaults()
	if err := o.clear(ctx); err != nil {
		return nil, err
	}
	l, fresh, err := openOrCreate(o)
	if err != nil {
		return nil, err
	}
	l.progress = newProgress(o.Progress)
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("the lab was not up within %v", o.Timeout))
	defer cancel()
	stop := l.progress.keepTalking()
	defer stop()
	if fresh && o.Bound {
		err = l.bind()
	}
	if err == nil {
		err = l.raise(ctx, o.Empty)
	}
	if err != nil {
		err = l.explain(err)
		if fresh && !o.Keep {
			err = errors.Join(err, l.takeDown(context.WithoutCancel(ctx), false))
		}
		l.unbind()
		return nil, err
	}
	return l, nil
}

// raise starts the network and mounts the disks, where there are some, and starts the group.
func (l *Lab) raise(ctx context.Context, empty bool) error {
	if err := l.ensureNetwork(ctx); err != nil {
		return err
	}
	if cuts := l.cuts(); cuts != "" {
		l.progress.line(cuts)
	}
	if err := errors.Join(l.mountDisks(ctx), l.resumeClocks()); err != nil {
		return err
	}
	if empty {
		return nil
	}
	return l.form(ctx)
}

func (o *Options) setDefaults() {
	if o.Dir == "" {
		o.Dir = DefaultDir()
	}
	if o.Replicas == 0 {
		o.Replicas = 3
	}
	if o.Profile == "" {
		o.Profile = "default"
	}
	if o.Timeout == 0 {
		o.Timeout = 3 * time.Minute
	}
}

// clear removes an abandoned lab from the place of one that will be bound.
func (o *Options) clear(ctx context.Context) error {
	if !o.Bound {
		return nil
	}
	l, err := Open(o.Dir)
	if err != nil {
		return nil //nolint:nilerr // openOrCreate says whether that matters
	}
	if is, err := l.abandoned(); !is || err != nil {
		return err
	}
	newProgress(o.Progress).line("removing the lab that an interrupted command left in " + l.dir)
	if err := l.Down(ctx); err != nil {
		return fmt.Errorf("remove the lab that an interrupted command left in %s: %w", l.dir, err)
	}
	return nil
}

func openOrCreate(o Options) (l *Lab, fresh bool, err error) {
	if _, err := os.Lstat(filepath.Join(o.Dir, file)); errors.Is(err, os.ErrNotExist) {
		l, err = create(o)
		return l, true, err
	}
	l, err = Open(o.Dir)
	if err == nil && o.Net != "" && o.Net != l.d.Net {
		err = usage("the lab in %s was made with --net %s, which stays; remove it first with coterie lab down, or choose another directory with --dir", l.dir, l.d.Net)
	}
	if err == nil && o.Exe != "" {
		l.d.Exe, err = filepath.Abs(o.Exe)
	}
	return l, false, err
}

// lock makes sure that one command at a time changes what the lab consists of.
func (l *Lab) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(l.dir, ".lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the lab: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fail.Unhealthyf("another command works on the lab in %s; wait for its end, or end it", l.dir)
	}
	return func() { _ = f.Close() }, nil
}

// form makes and starts what is missing, in the order in which a group is formed by hand: found it, then have the
// others join.
func (l *Lab) form(ctx context.Context) error {
	nodes := l.Nodes()
	if !nodes[0].made() {
		if err := l.found(ctx, nodes[0]); err != nil {
			return err
		}
	}
	g, part := errgroup.WithContext(ctx)
	for _, n := range nodes {
		if n.made() {
			g.Go(func() error { return l.startAgain(part, n) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	primary, err := l.awaitPrimary(ctx)
	if err != nil {
		return err
	}
	l.progress.line(primary.Name + " is the primary and takes writes")
	g, part = errgroup.WithContext(ctx)
	g.Go(func() error { return l.makeRole(part, primary) })
	for _, n := range nodes {
		if !n.made() && !n.Witness {
			g.Go(func() error { return l.join(part, n, primary) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if w := nodes[len(nodes)-1]; w.Witness && !w.made() {
		if err := l.join(ctx, w, primary); err != nil {
			return err
		}
	}
	return l.awaitReady(ctx)
}

// startAgain starts a node that is down and continues one that is paused.
func (l *Lab) startAgain(ctx context.Context, n Node) error {
	t, err := l.find(n)
	if err != nil {
		return err
	}
	switch {
	case t.paused():
		l.progress.line("continuing " + n.Name)
		return thaw(t)
	case t.agent == nil:
		l.progress.line("starting " + n.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %v", startTimeout))
	defer cancel()
	return l.start(ctx, n)
}

func (l *Lab) found(ctx context.Context, n Node) error {
	l.progress.line(fmt.Sprintf("making %s, the first node (a new database cluster)", n.Name))
	_, err := l.run(ctx, n, append(l.initArgs(n), "--no-start")...)
	return err
}

func (l *Lab) initArgs(n Node) []string {
	args := append([]string{"init", "--group", "lab"}, n.flags()...)
	if l.d.NoGroup {
		args = append(args, "--no-group")
	}
	if l.d.Profile != "default" {
		args = append(args, "--profile", l.d.Profile)
	}
	return append(args, l.d.Quorum...)
}

// flags are what init, join and witness need to know about the node.
func (n Node) flags() []string {
	rw, ro, https := n.readWrite(), n.readOnly(), n.https()
	if n.Witness {
		rw, ro, https = "", "", ""
	}
	return []string{"--node", n.Dir, "--name", n.Name, "--endpoint", n.endpoint(), "--read-write", rw, "--read-only", ro, "--http", n.http(), "--https", https}
}

// join has a replica or witness admitted, and starts it.
func (l *Lab) join(ctx context.Context, n, by Node) error {
	kind, verb := "replica", "join"
	if n.Witness {
		kind, verb = "witness", "witness"
	}
	l.progress.line(fmt.Sprintf("%s joins as a %s", n.Name, kind))
	out, err := l.run(ctx, by, "token", "create", "--node", by.Dir, "--role", kind, "--json")
	if err != nil {
		return err
	}
	var t api.TokenResult
	if err := json.Unmarshal(out, &t); err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	if _, err := l.run(ctx, n, append([]string{verb, t.Token, "--no-start"}, n.flags()...)...); err != nil {
		return err
	}
	return l.start(ctx, n)
}

// run runs a command about a node to its end and returns what it wrote to standard output.
func (l *Lab) run(ctx context.Context, n Node, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.d.Exe, args...)
	cmd.Dir = "/"
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := l.within(n, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, nodeError{n.Name, fmt.Errorf("coterie %s of %s: %w: %s", args[0], n.Name, err, bytes.TrimSpace(said.Bytes()))}
	}
	return out.Bytes(), nil
}

func (l *Lab) awaitPrimary(ctx context.Context) (Node, error) {
	l.progress.doing("waiting for a primary that takes writes")
	for {
		s, err := l.look(ctx)
		if err != nil {
			return Node{}, err
		}
		if s.Primary != nil {
			return l.node(*s.Primary)
		}
		if err := retry.Sleep(ctx, lookPause); err != nil {
			return Node{}, nodeError{l.Nodes()[0].Name, fmt.Errorf("no primary takes writes: %w", err)}
		}
	}
}

// awaitReady waits until every replica is SYNCHRONIZED and every voter votes: before that, the group would not survive
// its primary.
func (l *Lab) awaitReady(ctx context.Context) error {
	seen := map[string]ag.SyncState{}
	for {
		s, err := l.look(ctx)
		if err != nil {
			return err
		}
		var waiting, lagging []string
		for _, r := range s.Replicas {
			if s.Draft || r.Join == ag.Detached {
				continue // there is nothing to synchronize
			}
			if r.Sync == ag.Synchronized && seen[r.Name] != r.Sync {
				l.progress.line(fmt.Sprintf("%s is %s and SYNCHRONIZED", r.Name, r.Role))
			}
			seen[r.Name] = r.Sync
			if r.Sync != ag.Synchronized {
				waiting, lagging = append(waiting, strings.TrimSpace(fmt.Sprintf("%s: %s %s", r.Name, r.Sync, r.Now))), append(lagging, r.Name)
			}
		}
		if s.Ready() && s.Voters >= l.votes() {
			return nil
		}
		if len(waiting) == 0 {
			waiting, lagging = []string{fmt.Sprintf("%d of %d votes", s.Voters, l.votes())}, []string{l.Nodes()[len(l.Nodes())-1].Name}
		}
		if cuts := l.cuts(); cuts != "" {
			waiting = append(waiting, cuts)
		}
		l.progress.doing("waiting: " + strings.Join(waiting, "; "))
		if err := retry.Sleep(ctx, lookPause); err != nil {
			return nodeError{lagging[0], fmt.Errorf("not every replica is SYNCHRONIZED: %s: %w", strings.Join(waiting, "; "), err)}
		}
	}
}

// votes is how many members of the group vote: all, if that is an odd number, and at most five.
func (l *Lab) votes() int {
	n := min(len(l.Nodes()), 5)
	if n%2 == 0 {
		n--
	}
	return n
}

// look reads the status and fails if a node that was started has died.
func (l *Lab) look(ctx context.Context) (Status, error) {
	s, err := l.Status(ctx)
	if err != nil {
		return s, err
	}
	for _, r := range append(s.Replicas, s.Witnesses...) {
		if r.State == "down" {
			return s, nodeError{r.Name, fmt.Errorf("%s ended while the lab was waiting for it", r.Name)}
		}
	}
	return s, nil
}

// ByHand are the commands that form the group of an empty lab, for a reader to type: each node's in a terminal of its
// own.
func (l *Lab) ByHand() []string {
	quote := func(args []string) string {
		for i, a := range args {
			if a == "" || strings.ContainsAny(a, " '\"$`\\*?&;|<>()") {
				args[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
			}
		}
		return strings.Join(args, " ")
	}
	at := func(n Node) []string { // where the node's commands run
		if !l.Namespaced() {
			return []string{l.d.Exe}
		}
		return []string{l.d.Exe, "lab", "exec", n.Name, "--dir", l.dir, "--", l.d.Exe}
	}
	nodes := l.Nodes()
	out := []string{quote(append(at(nodes[0]), l.initArgs(nodes[0])...))}
	for _, n := range nodes[1:] {
		kind, verb := "replica", "join"
		if n.Witness {
			kind, verb = "witness", "witness"
		}
		out = append(out, quote([]string{l.d.Exe, "member", "add-token", "--role", kind, "--node", nodes[0].Dir}),
			quote(append(at(n), verb))+" TOKEN "+quote(n.flags()))
	}
	return out
}

// silence is how long a lab prints nothing before it prints what it waits for.
const silence = 2 * time.Second

// progress reports to one listener what happens, one line at a time.
type progress struct {
	mu   sync.Mutex
	say  func(string)
	last time.Time
	now  string // the current step, printed again after a silence
}

func newProgress(say func(string)) *progress {
	if say == nil {
		say = func(string) {}
	}
	return &progress{say: say, last: time.Now()}
}

func (p *progress) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.say(s)
	p.now, p.last = s, time.Now()
}

// doing notes the current step, for the next silence.
func (p *progress) doing(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = s
}

// keepTalking breaks every silence until the returned function is called.
func (p *progress) keepTalking() (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				p.tick()
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func (p *progress) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.last) < silence {
		return
	}
	p.say("... " + p.now)
	p.last = time.Now()
}
