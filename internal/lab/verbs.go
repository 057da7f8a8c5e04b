package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

// The parts of a node that Kill can kill and Pause can stop.
const (
	WhatNode     = "node"
	WhatAgent    = "agent"
	WhatKeeper   = "keeper"
	WhatPostgres = "postgres"
)

// startTimeout is how long an agent may take from its start to its first answer.
const startTimeout = 60 * time.Second

func notRunning(node, what string) error {
	return fail.Unhealthyf("%s has no running %s; coterie lab status shows what runs", node, what)
}

// Kill ends a node, or one of its processes, by SIGKILL. All processes of a node are stopped first, so that they die at
// one instant and none sees another's death.
func (l *Lab) Kill(node, what string) error {
	n, err := l.node(node)
	if err != nil {
		return err
	}
	if what == "" || what == WhatNode {
		return l.killNode(n)
	}
	t, err := l.find(n)
	if err != nil {
		return err
	}
	one, ok := map[string]*process{WhatAgent: t.agent, WhatKeeper: t.keeper, WhatPostgres: t.postgres}[what]
	switch {
	case !ok:
		return usage("what to kill: node, agent, keeper or postgres, and not %q", what)
	case one == nil:
		return notRunning(node, what)
	}
	if err := one.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the %s of %s: %w", what, node, err)
	}
	return awaitGone([]process{*one}, 5*time.Second)
}

func (l *Lab) killNode(n Node) error {
	all, frozen := l.freeze(n, WhatNode) // a process that could not be stopped is killed all the same
	if len(all) == 0 {
		return errors.Join(frozen, notRunning(n.Name, "process"))
	}
	var errs []error
	for _, p := range all {
		errs = append(errs, p.signal(syscall.SIGKILL))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("kill %s: %w", n.Name, err)
	}
	return errors.Join(frozen, awaitGone(all, 10*time.Second))
}

// Pause stops every process of a node, as a machine that hangs does, or one part of it.
func (l *Lab) Pause(node, what string) error {
	n, err := l.node(node)
	if err != nil {
		return err
	}
	if !slices.Contains([]string{WhatNode, WhatAgent, WhatKeeper, WhatPostgres}, what) {
		return usage("what to pause: node, agent, keeper or postgres, and not %q", what)
	}
	part, err := l.freeze(n, what)
	if err == nil && len(part) == 0 {
		return notRunning(node, what)
	}
	return err
}

// Resume continues every process of a node that was paused, whole or in part.
func (l *Lab) Resume(node string) error {
	n, err := l.node(node)
	if err != nil {
		return err
	}
	t, err := l.find(n)
	if err != nil {
		return err
	}
	if !t.running() {
		return notRunning(node, "process")
	}
	return thaw(t)
}

func thaw(t tree) error {
	var errs []error
	for _, p := range t.all {
		if p.stopped() {
			errs = append(errs, p.signal(syscall.SIGCONT))
		}
	}
	return errors.Join(errs...)
}

// Start starts the agent of a node, which starts the rest, and returns when it answers. A running node is left as it
// is.
func (l *Lab) Start(node string) error {
	n, err := l.node(node)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return l.start(ctx, n)
}

func (l *Lab) start(ctx context.Context, n Node) error {
	if !n.made() {
		return fail.Unhealthyf("%s is not made yet: coterie lab up does it", n.Name)
	}
	if err := errors.Join(l.mountDisk(ctx, n), l.resumeClocks()); err != nil {
		return err
	}
	t, err := l.find(n)
	if err != nil {
		return err
	}
	if t.paused() {
		return fail.Unhealthyf("%s is paused; continue it with coterie lab resume %s", n.Name, n.Name)
	}
	var ended <-chan error
	if t.agent == nil {
		if err := l.ensureNetwork(ctx); err != nil {
			return err
		}
		if ended, err = l.startAgent(n); err != nil {
			return nodeError{n.Name, fmt.Errorf("start the agent of %s: %w", n.Name, err)}
		}
	}
	return l.awaitAgent(ctx, n, ended)
}

// startAgent starts the agent in a session of its own: it outlives this process.
func (l *Lab) startAgent(n Node) (<-chan error, error) {
	out, err := agentOut(n)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(l.d.Exe, "agent", "--node", n.Dir) //nolint:noctx // not bound to a context: it outlives every one of ours
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	start := func() error { return l.startCapped(n, cmd) }
	in := func(f func() error) error { return l.within(n, f) }
	if !l.Namespaced() {
		if err := keepOffAddresses(n); err != nil {
			return nil, err
		}
		in = withoutPackets
	}
	if err := in(start); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	l.agents.Go(func() { ended <- cmd.Wait() })
	return ended, nil
}

// keepOffAddresses has coterie.yaml keep the node from putting up virtual addresses: on the loopback interface they
// would be this host's own. The agent has CAP_NET_ADMIN, with which it could, for the path through the kernel. A line
// that is there already is left as it is.
func keepOffAddresses(n Node) error {
	root, err := os.OpenRoot(n.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(config.File, os.O_RDWR|os.O_APPEND, 0) // appended to, it keeps its owner and its comments
	if err != nil {
		return fmt.Errorf("keep the node off this host's addresses: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxDescription))
	if err != nil {
		return fmt.Errorf("keep the node off this host's addresses: %w", err)
	}
	if addressesLine.Match(b) {
		return nil
	}
	line := "no_virtual_addresses: true\n"
	if !bytes.HasSuffix(b, []byte("\n")) {
		line = "\n" + line
	}
	if _, err := f.WriteString(line); err != nil {
		return fmt.Errorf("keep the node off this host's addresses: %w", err)
	}
	return nil
}

// addressesLine is the line of coterie.yaml that lets or keeps a node from putting up virtual addresses.
var addressesLine = regexp.MustCompile(`(?m)^no_virtual_addresses:`)

// withoutPackets starts an agent that can send no packets of its own making on this host's devices, also if root starts
// it: only virtual addresses are announced by such. It keeps the other capabilities that a real node has.
func withoutPackets(start func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()                                          // and never unlocked: the thread ends, and its lack of the capability with it
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_NET_RAW, 0, 0, 0) // only root can, and only root's programs have it
		done <- start()
	}()
	return <-done
}

// agentOut opens the file for an agent's output outside its log. The directory belongs to another user when this is
// root, which must not be led out of it by a link.
func agentOut(n Node) (*os.File, error) {
	uid, gid, err := nodeUser()
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(n.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	f, err := root.OpenFile(filepath.Join("log", "agent.out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return f, f.Chown(uid, gid)
}

func (l *Lab) awaitAgent(ctx context.Context, n Node, ended <-chan error) error {
	for {
		if _, err := ask(ctx, n); err == nil {
			return nil
		}
		select {
		case err := <-ended:
			return nodeError{n.Name, fmt.Errorf("the agent of %s ended at once: %w", n.Name, err)}
		case <-ctx.Done():
			return nodeError{n.Name, fmt.Errorf("the agent of %s does not answer: %w", n.Name, context.Cause(ctx))}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Down stops the lab and removes it.
func (l *Lab) Down(ctx context.Context) error { return l.down(ctx, false) }

// Stop stops every node in order and keeps the lab's directory: Up starts it again.
func (l *Lab) Stop(ctx context.Context) error { return l.down(ctx, true) }

func (l *Lab) down(ctx context.Context, keep bool) error {
	if err := l.outside(); err != nil {
		return err
	}
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if l.lifeline == nil {
		if err := l.dismiss(); err != nil {
			return err
		}
	}
	defer l.unbind()
	return l.takeDown(ctx, keep)
}

// Leave keeps a lab that would end with this process: it stays as it is.
func (l *Lab) Leave() { l.unbind() }

// remove removes the lab's directory. The files that show it to be a lab go last, so an interrupted removal can be
// repeated.
func (l *Lab) remove() error {
	entries, err := os.ReadDir(l.dir)
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != file && e.Name() != reaperLog {
			errs = append(errs, os.RemoveAll(filepath.Join(l.dir, e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(l.dir)
}

// takeDown asks every agent to end, waits, and kills the processes that remain.
func (l *Lab) takeDown(ctx context.Context, keep bool) error {
	budget := 10 * time.Second
	if keep { // data that is used again deserves a shutdown in order
		budget = 40 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	errs := []error{l.endClocks(), l.healDisks(ctx)}
	if keep {
		errs = append(errs, l.endCuts(ctx))
	}
	l.progress.line("stopping the nodes")
	for _, n := range l.Nodes() {
		errs = append(errs, l.terminate(n))
	}
	for _, n := range l.Nodes() {
		errs = append(errs, l.awaitEnd(ctx, n))
	}
	errs = append(errs, l.endNetwork())
	l.agents.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := errors.Join(l.removeDisks(context.WithoutCancel(ctx)), l.removeCaps()); err != nil {
		return err
	}
	for _, n := range l.Nodes() {
		errs = append(errs, removeRunDir(n))
	}
	if !keep {
		errs = append(errs, l.remove())
	}
	return errors.Join(errs...)
}

// terminate ends a node: its agent, which ends the rest, or the processes that exist without an agent.
func (l *Lab) terminate(n Node) error {
	t, err := l.find(n)
	if err != nil {
		return err
	}
	errs := []error{thaw(t)}
	switch {
	case t.agent != nil:
		errs = append(errs, t.agent.signal(syscall.SIGTERM))
	case t.keeper != nil:
		errs = append(errs, t.keeper.signal(syscall.SIGTERM))
	}
	return errors.Join(errs...)
}

// awaitEnd waits for the end of a node. A keeper whose agent ended without it is asked to end, too.
func (l *Lab) awaitEnd(ctx context.Context, n Node) error {
	var alone time.Time
	for {
		t, err := l.find(n)
		switch {
		case err != nil || !t.running():
			return err
		case t.agent != nil || t.keeper == nil || alone.IsZero():
			alone = time.Now()
		case time.Since(alone) > time.Second:
			l.progress.line("the agent of " + n.Name + " ended and left its keeper; ending that")
			if err := t.keeper.signal(syscall.SIGTERM); err != nil {
				return err
			}
			alone = time.Now().Add(time.Minute) // once is enough
		}
		if retry.Sleep(ctx, 20*time.Millisecond) != nil {
			l.progress.line(n.Name + " has not ended by itself; killing it. What it logged last:")
			for _, line := range (&tail{node: n, file: "agent.log"}).lastLines(5) {
				l.progress.line(line)
			}
			return l.killNode(n)
		}
	}
}

// removeRunDir removes the private directory of the node's sockets, and its parent when that was the last.
func removeRunDir(n Node) error {
	layout, err := config.NewLayout(n.Dir)
	if err != nil {
		return err
	}
	err = os.RemoveAll(layout.Run)
	if parent := filepath.Dir(layout.Run); strings.HasPrefix(parent, "/tmp/") {
		_ = os.Remove(parent) // stays while other nodes use it
	}
	return err
}
