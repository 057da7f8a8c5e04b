package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lab"
	faults "github.com/coteriedb/coterie/internal/lib/fault"
	"github.com/coteriedb/coterie/internal/test/crashpoints"
)

// comes is how long a process may take to come to a point after the scenario was played.
const comes = 90 * time.Second

// crash is a group whose processes can be ended at a point.
type crash struct {
	*group
	points  faults.Directory
	lowered int             // how often max_connections was
	told    strings.Builder // a line for each point
}

// deed does something to the group, which is ready, so that a process comes to the point. A step that fails because
// that process dies is no error.
type deed func(t *testing.T, c *crash, was lab.Status)

// plays are those of crashpoints.Scenarios that are played on one group.
var plays = map[string]deed{
	"planned failover": func(t *testing.T, c *crash, was lab.Status) {
		c.command(t, "failover", "--to", secondaries(was)[0], "--node", c.node(*was.Primary))
	},
	"the primary's node dies": func(t *testing.T, c *crash, was lab.Status) { c.kill(t, *was.Primary) },
	"a secondary's node dies and comes back": func(t *testing.T, c *crash, was lab.Status) {
		x := secondaries(was)[0]
		c.kill(t, x)
		c.await(t, x+" is dropped, or a process has ended", func(s lab.Status) bool {
			p, err := c.status(t, *was.Primary)
			return c.points.Fired() || err == nil && len(p.SyncMembers) == 1
		})
		c.again(t, x)
	},
	"the primary's server dies": func(t *testing.T, c *crash, was lab.Status) {
		if err := c.Kill(*was.Primary, lab.WhatPostgres); err != nil {
			t.Error(err)
		}
	},
	"another program changes a reserved setting": func(t *testing.T, c *crash, was lab.Status) {
		if err := c.privately(t, *was.Primary, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()"); err != nil {
			t.Log(err)
		}
	},
	"the primary's agent restarts in place": func(t *testing.T, c *crash, was lab.Status) {
		c.command(t, "restart", "--node", c.node(*was.Primary))
	},
	"the primary's server restarts in place": func(t *testing.T, c *crash, was lab.Status) {
		c.lowered++
		c.says(t, *was.Primary, fmt.Sprintf("ALTER AVAILABILITY GROUP lab SET PARAMETER max_connections = %d", 100-c.lowered))
		c.until(t, "the server waits for a restart", func() bool {
			r, err := c.answered(t, *was.Primary, "SELECT count(*) FROM coterie.settings WHERE name = 'max_connections' AND pending_restart AND node = '"+*was.Primary+"'")
			return err == nil && fmt.Sprint(r.Rows[0][0]) == "1"
		})
		c.command(t, "restart", "--postgres", *was.Primary, "--node", c.node(*was.Primary))
	},
	"a diverged primary comes back": func(t *testing.T, c *crash, _ lab.Status) {
		old, _ := c.diverge(t)
		c.again(t, old)
	},
	"a new copy is asked for": func(t *testing.T, c *crash, was lab.Status) {
		x := secondaries(was)[0]
		c.command(t, "seed", x, "--full", "--node", c.node(x))
	},
	"a member is removed and joins again": rejoin,
	"a lost member is replaced": func(t *testing.T, c *crash, was lab.Status) {
		c.replaced(t, secondaries(was)[1], func(x string) { c.kill(t, x) })
	},
	"the quorum's store of a member is damaged": func(t *testing.T, c *crash, was lab.Status) {
		x := secondaries(was)[0]
		c.kill(t, x)
		damageStore(t, filepath.Join(c.node(x), "etcd", "member", "snap", "db"))
		c.again(t, x)
	},
	"the authority is rotated": func(t *testing.T, c *crash, was lab.Status) {
		c.command(t, "ca", "rotate", "--node", c.node(*was.Primary))
	},
}

// damageStore overwrites every page of a member's database but the first two, by which it would not be one.
func damageStore(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const kept = 2 * 4096
	if _, err := f.WriteAt(bytes.Repeat([]byte("damaged "), int(st.Size()-kept)/8), kept); err != nil {
		t.Fatal(err)
	}
}

// unwritten are the scenarios in which nobody may write: they may lose what was not replicated yet.
var unwritten = []string{"another program changes a reserved setting"}

// TestCrashPoints ends a process at each of its points. COTERIE_CRASHPOINTS selects some by a prefix.
func TestCrashPoints(t *testing.T) {
	long(t)
	if os.Getenv("COTERIE_CRASHPOINTS") == "" {
		t.Skip("make crashpoints runs it, for half an hour (COTERIE_CRASHPOINTS=all, or the beginning of a name)")
	}
	c := newCrash(t)
	for _, s := range crashpoints.Scenarios {
		p, ok := plays[s.Name]
		if !ok {
			continue // crashcommands_test.go
		}
		for _, name := range selected(s.Points) {
			t.Run(name, func(t *testing.T) { c.die(t, name, p, slices.Contains(unwritten, s.Name)) })
			if t.Failed() && !c.Ready(t) {
				t.Fatal("the group does not come back; the other points were not tried")
			}
		}
	}
	if !t.Failed() {
		c.down(t)
	}
	record(t, "make crashpoints", "COTERIE_CRASHPOINTS_RECORD", c.told.String())
}

// Ready reports whether the group is whole.
func (c *crash) Ready(t *testing.T) bool {
	t.Helper()
	s, err := c.Status(t.Context())
	return err == nil && s.Ready()
}

// selected are the points that this run is about.
func selected(names []string) []string {
	want := os.Getenv("COTERIE_CRASHPOINTS")
	if want == "all" {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.ContainsFunc(strings.Fields(want), func(w string) bool { return strings.HasPrefix(name, w) })
	})
}

// armable builds the program whose points can be armed, and uses it for the rest of the test.
func armable(t *testing.T) faults.Directory {
	t.Helper()
	dir, err := os.MkdirTemp(root, "fault")
	if err != nil {
		t.Fatal(err)
	}
	d, err := faults.NewDirectory(dir)
	if err != nil {
		t.Fatal(err)
	}
	special := filepath.Join(dir, "coterie")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", faults.LinkFlag, "-o", special, "../../../cmd/coterie").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	was := exe
	exe = special
	t.Cleanup(func() { exe = was })
	t.Setenv(faults.DirEnv, dir)
	return d
}

func newCrash(t *testing.T) *crash {
	t.Helper()
	d := armable(t)
	g := newGroup(t, lab.Options{})
	if err := g.run(t, "CREATE TABLE IF NOT EXISTS alone (n int)"); err != nil {
		t.Fatal(err)
	}
	return &crash{group: g, points: d}
}

// run runs a statement on the primary.
func (g *group) run(t *testing.T, statement string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := pgx.Connect(ctx, g.ReadWrite())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	_, err = c.Exec(ctx, statement)
	return err
}

// die plays a scenario while a point is armed, and judges what became of it.
func (c *crash) die(t *testing.T, name string, p deed, quiet bool) {
	was := c.ready(t)
	if quiet {
		c.judge(t)
	}
	if err := c.points.Arm(name); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p(t, c, was)
	c.fired(t, name)
	came := time.Since(began)
	c.whole(t)
	line := fmt.Sprintf("%-20s ended after %v, whole after %v", name, came.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	t.Log(line)
	c.told.WriteString(line + "\n")
	if quiet {
		c.write(t)
	}
	c.judgeAndGoOn(t)
}

// fired waits until a process has ended at the point that is armed. Nodes that died on the way are started again: some
// points are on their way back.
func (c *crash) fired(t *testing.T, name string) {
	t.Helper()
	defer func() { _ = c.points.Disarm() }()
	for end := time.Now().Add(comes); !c.points.Fired(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("no process came to the point %s", name)
			return
		}
	}
}

// whole starts what has ended, as a service manager does, until the group is whole and nothing is left half done.
func (c *crash) whole(t *testing.T) {
	t.Helper()
	var names []string
	for _, n := range c.Nodes() {
		names = append(names, n.Name)
	}
	var s lab.Status
	c.await(t, "no rotation is under way", func(lab.Status) bool {
		s = c.revive(t, names...) // again: a node may have ended since it was asked
		st, err := c.status(t, *s.Primary)
		return err == nil && st.Rotation == nil
	})
	c.voters(t, *s.Primary, len(names))
}

// again starts a node's agent, which may die on the way.
func (c *crash) again(t *testing.T, node string) {
	t.Helper()
	if err := c.Start(node); err != nil {
		t.Logf("start %s: %v", node, err)
	}
}

// command runs a command until it ends, or until a process has ended at the point that is armed: it may be the process
// that the command waits for.
func (c *crash) command(t *testing.T, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	over := make(chan struct{})
	go func() {
		defer cancel()
		for !c.points.Fired() {
			select {
			case <-over:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
		select { // its own last word is welcome
		case <-over:
		case <-time.After(time.Second):
		}
	}()
	out, err := cmd.CombinedOutput()
	close(over)
	if err != nil {
		t.Logf("coterie %q: %v: %s", args, err, strings.TrimSpace(string(out)))
	}
}

// killed reports whether a command ended by SIGKILL.
func killed(cmd *exec.Cmd) bool {
	st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && st.Signaled() && st.Signal() == syscall.SIGKILL
}

// dies runs a command that is to end at the point.
func dies(t *testing.T, d faults.Directory, name string, args ...string) {
	t.Helper()
	diesAs(t, d, nil, name, args...)
}

// diesAs is dies for a command that another user runs; nil: this one.
func diesAs(t *testing.T, d faults.Directory, as *syscall.Credential, name string, args ...string) {
	t.Helper()
	if err := d.Arm(name); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Disarm() }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
	out, err := cmd.CombinedOutput()
	if !d.Fired() || !killed(cmd) {
		t.Fatalf("coterie %q did not end at %s: %v\n%s", args, name, err, fmt.Sprintf("%.2000s", out))
	}
}
