package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/tpcc"
)

const stages = 6

// Options describes what Run runs.
type Options struct {
	Up       func(ctx context.Context, progress func(string)) (observe.Lab, error)
	Out      io.Writer     // of the story
	Terminal bool          // Out is one: the live view may redraw a line
	Colour   bool          // Out shows colours
	Dir      string        // of the ledger and of the lab's nodes
	Version  string        // of this program
	Server   string        // which PostgreSQL
	Program  string        // how this program was called; default coterie
	Broken   bool          // take the protection away before the kill: the demo must then report a loss
	Keep     bool          // leave the group running, if the story came to its end
	Clients  int           // default 8
	Before   time.Duration // of load before the kill; default 10 s
	Settle   time.Duration // of load after each failover; default 4 s
}

// demo is one run.
type demo struct {
	Options
	screen *observe.Screen
	lab    observe.Lab
	ledger *ledger.Ledger
	meter  *meter
	now    atomic.Pointer[string] // the awaited condition, beside the load
	report Report
}

// Run tells the story and returns its verdict. An error means that the story did not end; losses are in the report, not
// in the error. Everything it started has ended when it returns, unless Keep is set and the story came to its end.
func Run(ctx context.Context, o Options) (report Report, err error) {
	if o.Clients <= 0 {
		o.Clients = 8
	}
	if o.Before <= 0 {
		o.Before = 10 * time.Second
	}
	if o.Settle <= 0 {
		o.Settle = 4 * time.Second
	}
	d := &demo{Options: o, screen: observe.NewScreen(o.Out, o.Terminal), meter: newMeter(), report: Report{Version: o.Version, PostgreSQL: o.Server, CPUs: runtime.NumCPU()}}
	defer d.screen.Close()
	if o.Colour {
		d.screen.Paint(paint)
	}
	start := time.Now()
	defer func() {
		err = d.end(err)
		report = d.report
	}()
	d.stage(1, "coterie %s   PostgreSQL %s   %d processors", o.Version, o.Server, runtime.NumCPU())
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"lab up", d.up},
		{"data", d.load},
		{"node killed", d.nodeDeath},
		{"back again", d.comeBack},
		{"planned failover", d.handOver},
		{"comparison", d.verify},
	} {
		began := time.Now()
		if err := step.run(ctx); err != nil {
			if ctx.Err() != nil {
				err = errors.New("interrupted")
			}
			return d.report, err
		}
		d.report.Parts = append(d.report.Parts, Part{step.name, time.Since(began).Seconds()})
	}
	d.report.Seconds = time.Since(start).Seconds()
	d.report.judge()
	d.screen.Doing(nil)
	d.tell()
	return d.report, nil
}

// stage prints the line of a stage that is over or begins.
func (d *demo) stage(n int, format string, a ...any) {
	d.screen.Line("[%d/%d] "+format, append([]any{n, stages}, a...)...)
}

// end takes the lab down, whatever happened.
func (d *demo) end(err error) error {
	if d.ledger != nil {
		err = errors.Join(err, d.ledger.Close())
	}
	if d.lab == nil {
		return err
	}
	if err == nil && d.Keep {
		d.report.Kept = true
		d.lab.Leave()
		d.tellKept()
		return nil
	}
	d.screen.Busy("stopping the group")
	ctx, cancel := context.WithTimeout(context.Background(), observe.DownBudget)
	defer cancel()
	unsound := err == nil && !d.report.Sound && !d.Broken
	if unsound {
		d.screen.Say("the servers are stopped; their files are left for a look in %s (remove them with: coterie lab down --dir %s)", d.Dir, d.Dir)
	}
	if derr := d.lab.Down(ctx, unsound); derr != nil {
		err = errors.Join(err, fmt.Errorf("stop the group: %w; to see what is left: coterie lab status --dir %s", derr, d.Dir))
	}
	return err
}

func (d *demo) up(ctx context.Context) error {
	start := time.Now()
	var mu sync.Mutex
	now := "starting"
	d.screen.Doing(func() string {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprintf("lab up: %s … %.0f s", now, time.Since(start).Seconds())
	})
	l, err := d.Up(ctx, func(what string) {
		mu.Lock()
		defer mu.Unlock()
		now = what
	})
	if err != nil {
		return fmt.Errorf("lab up: %w", err)
	}
	d.lab = l
	s, err := observe.Primary(ctx, l)
	if err != nil {
		return err
	}
	d.report.UpSeconds = time.Since(start).Seconds()
	var parts []string
	for _, r := range s.Replicas {
		parts = append(parts, describe(r))
	}
	d.stage(2, "lab up: %s   %.1f s", strings.Join(parts, "   "), d.report.UpSeconds)
	d.screen.Say("read-write %s", l.ReadWrite())
	d.screen.Say("read-only  %s", l.ReadOnly())
	return nil
}

func describe(r api.Replica) string {
	if r.Role == ag.RolePrimary {
		return fmt.Sprintf("%s PRIMARY", r.Name)
	}
	return fmt.Sprintf("%s %s %s", r.Name, r.Role, r.Sync)
}

func (d *demo) load(ctx context.Context) error {
	start := time.Now()
	var mu sync.Mutex
	var done, total int64
	d.screen.Doing(func() string {
		mu.Lock()
		defer mu.Unlock()
		return fmt.Sprintf("loading 1 warehouse through the listener: %s of %s rows", observe.Thousands(done), observe.Thousands(total))
	})
	rows, err := tpcc.Load(ctx, d.lab.ReadWrite(), tpcc.LoadOptions{Warehouses: 1, Seed: 1, Progress: func(n, of int64) {
		mu.Lock()
		defer mu.Unlock()
		done, total = n, of
	}})
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	d.screen.Busy("checking the 12 consistency conditions on every replica")
	leader, err := observe.Primary(ctx, d.lab)
	if err != nil {
		return err
	}
	if _, err := caughtUp(ctx, d.lab, string(leader.Primary)); err != nil {
		return err
	}
	found, err := inspect(ctx, d.lab, false)
	if err != nil {
		return err
	}
	d.report.Rows = rows
	d.meter.learn(ctx, d.lab)
	d.stage(3, "load: 1 warehouse, %s rows; %s   %.1f s", observe.Thousands(rows), tellConditions(found), time.Since(start).Seconds())
	if v := violated(found); v != "" {
		return fmt.Errorf("the database as loaded is not consistent: %s", v)
	}
	d.ledger, err = ledger.Open(filepath.Join(d.Dir, "ledger"))
	if err != nil {
		return err
	}
	return d.ledger.Prepare(ctx, d.lab.ReadWrite())
}

// clients are the TPC-C clients and the ledger's writer of one part of the story.
type clients struct {
	load   *load
	cancel context.CancelFunc
	wrote  chan error
}

func (d *demo) work(ctx context.Context, seed uint64) *clients {
	wctx, cancel := context.WithCancel(ctx)
	c := &clients{cancel: cancel, wrote: make(chan error, 1)}
	go func() {
		c.wrote <- d.ledger.Write(wctx, ledger.WriterOptions{DSN: d.lab.ReadWrite(), Every: 5 * time.Millisecond})
	}()
	c.load = startLoad(ctx, d.lab, d.Clients, seed, d.meter.tick)
	d.screen.Doing(func() string {
		line := d.meter.line(d.screen.Since(), d.ledger.Progress().Acknowledged)
		if now := d.now.Load(); now != nil {
			line += "   " + *now
		}
		return line
	})
	return c
}

func (c *clients) stop() (tpcc.Result, error) {
	res, err := c.load.stop()
	c.cancel()
	return res, errors.Join(err, <-c.wrote)
}

// nodeDeath kills the primary's node under load and waits until writes are acknowledged again.
func (d *demo) nodeDeath(ctx context.Context) (err error) {
	d.stage(4, "%d clients and a ledger writer (a row every 5 ms, fsynced here per acknowledgement) through the listener", d.Clients)
	d.screen.Begin()
	d.report.Death, d.report.TPS, err = d.underLoad(ctx, 1, d.death)
	return err
}

func (d *demo) death(ctx context.Context) error {
	s, err := observe.Primary(ctx, d.lab)
	if err != nil {
		return err
	}
	old := string(s.Node)
	stage := "while " + old + " led"
	d.meter.in(stage)
	if err := retry.Sleep(ctx, d.Before); err != nil {
		return err
	}
	d.report.Reads = append(d.report.Reads, Reads{Stage: stage, ByNode: d.meter.byNode(stage)})
	d.meter.in("")
	w := observe.Watch(ctx, d.lab, d.screen)
	defer w.Stop()
	if s, err = observe.Primary(ctx, d.lab); err != nil {
		return err
	}
	if string(s.Node) != old {
		return fmt.Errorf("%s took over from %s although nothing was done to it; see coterie explain", s.Node, old)
	}
	if err := d.sabotage(ctx, s); err != nil {
		return err
	}
	killed, err := d.kill(ctx, s)
	if err != nil {
		return err
	}
	leader, err := d.awaitWrites(ctx, old, killed)
	if err != nil {
		return err
	}
	d.report.Killed, d.report.Promoted = old, leader
	d.report.OutageMS = d.ledger.OutageBetween(killed, time.Now()).Longest.Milliseconds()
	return d.settle(ctx, leader)
}

func (d *demo) sabotage(ctx context.Context, s api.Status) error {
	if !d.Broken {
		return nil
	}
	self := observe.Own(s)
	if self.Local == nil {
		return errors.New("the primary's agent does not name its processes")
	}
	rows, err := breakProtection(ctx, d.lab.DSN(string(s.Node)), self.Local.Postgres, d.ledger)
	if err != nil {
		return err
	}
	d.screen.At(time.Now(), "BROKEN ON PURPOSE: synchronous_commit = local for everybody on %s, its walsenders stopped: %d rows acknowledged that nobody else has", s.Node, rows)
	return nil
}

// kill ends every process of the node at once and prints which these were.
func (d *demo) kill(ctx context.Context, s api.Status) (at time.Time, err error) {
	what := ""
	if p := observe.Own(s).Local; p != nil {
		what = fmt.Sprintf(": agent %d keeper %d postmaster %d + %d backends", p.Agent, p.Keeper, p.Postgres, len(children(p.Postgres, "")))
	}
	at = time.Now()
	if err := d.lab.Kill(ctx, string(s.Node)); err != nil {
		return at, fmt.Errorf("kill %s: %w", s.Node, err)
	}
	var positions []string
	for _, r := range s.Replicas {
		positions = append(positions, fmt.Sprintf("%s %s", r.Name, r.Position))
	}
	d.screen.At(at, "kill -9 %s%s   (positions: %s)", s.Node, what, strings.Join(positions, ", "))
	return at, nil
}

// awaitWrites waits until another node leads and a row was acknowledged by it.
func (d *demo) awaitWrites(ctx context.Context, old string, since time.Time) (leader string, err error) {
	var opened time.Time
	err = observe.Await(ctx, observe.FailoverBudget, "another replica to take writes", func(ctx context.Context) (bool, error) {
		s, err := observe.Primary(ctx, d.lab)
		if err != nil || string(s.Primary) == old {
			return false, err
		}
		leader, opened = string(s.Primary), time.Now()
		return true, nil
	})
	if err != nil {
		return "", err
	}
	// A row that the dead node acknowledged was noted long ago; one noted about now comes from the new one.
	err = observe.Await(ctx, observe.FailoverBudget, "an acknowledged write", func(context.Context) (bool, error) {
		return d.ledger.Progress().LastAck.After(opened.Add(-observe.PollEvery)), nil
	})
	if err != nil {
		return leader, err
	}
	o := d.ledger.OutageBetween(since, time.Now())
	d.screen.At(o.End, "%s acknowledges writes: outage %s", leader, observe.Millis(o.Longest))
	return leader, nil
}

// underLoad runs part with clients at work and returns how their connections fared.
func (d *demo) underLoad(ctx context.Context, seed uint64, part func(context.Context) error) (c Connections, tps float64, err error) {
	w := d.work(ctx, seed)
	err = part(ctx)
	res, serr := w.stop()
	d.meter.in("")
	return connections(res), res.TPS, errors.Join(err, serr)
}

// comeBack starts the dead node again, under load.
func (d *demo) comeBack(ctx context.Context) error {
	back := d.report.Killed
	d.stage(5, "%s starts again, under load", back)
	_, _, err := d.underLoad(ctx, 2, func(ctx context.Context) error {
		w := observe.Watch(ctx, d.lab, d.screen)
		defer w.Stop()
		start := time.Now()
		if err := d.lab.Start(ctx, back); err != nil {
			return fmt.Errorf("start %s: %w", back, err)
		}
		if err := observe.Await(ctx, observe.RejoinBudget, back+" to be SYNCHRONIZED", func(ctx context.Context) (bool, error) {
			done, err := observe.Synchronized(ctx, d.lab, len(d.lab.Nodes()), back)
			if err != nil {
				now := err.Error()
				d.now.Store(&now)
			}
			return done, err
		}); err != nil {
			return err
		}
		d.now.Store(nil)
		d.report.Rejoin = observe.RejoinOf(d.lab.Dir(back), w.Rules(back), time.Since(start))
		d.screen.At(time.Now(), "%s: %s", back, d.report.Rejoin)
		return nil
	})
	return err
}

// handOver moves the leadership as planned, under load.
func (d *demo) handOver(ctx context.Context) (err error) {
	d.meter.learn(ctx, d.lab)
	d.report.Handover, _, err = d.underLoad(ctx, 3, func(ctx context.Context) error {
		if err := retry.Sleep(ctx, d.Settle); err != nil {
			return err
		}
		w := observe.Watch(ctx, d.lab, d.screen)
		defer w.Stop()
		if err := d.planned(ctx); err != nil {
			return err
		}
		return d.settle(ctx, d.report.Planned.To)
	})
	return err
}

// settle lets the clients work for a while, and counts where they read.
func (d *demo) settle(ctx context.Context, leader string) error {
	stage := "while " + leader + " led"
	d.meter.learn(ctx, d.lab)
	d.meter.in(stage)
	if err := retry.Sleep(ctx, d.Settle); err != nil {
		return err
	}
	d.meter.in("")
	d.meter.learn(ctx, d.lab) // the old primary may have come back as a secondary only now
	d.report.Reads = append(d.report.Reads, Reads{Stage: stage, ByNode: d.meter.byNode(stage)})
	return nil
}

// planned moves the leadership to a synchronized secondary that was not killed.
func (d *demo) planned(ctx context.Context) error {
	s, err := observe.Primary(ctx, d.lab)
	if err != nil {
		return err
	}
	to := observe.Target(s, d.report.Killed)
	d.screen.At(time.Now(), "coterie failover --to %s", to)
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, observe.FailoverBudget)
	defer cancel()
	res, err := d.lab.Agent(string(s.Node)).Failover(ctx, api.FailoverRequest{To: to})
	if err != nil {
		return fmt.Errorf("planned failover to %s: %w", to, err)
	}
	if err := observe.Await(ctx, observe.FailoverBudget, "an acknowledged write", func(context.Context) (bool, error) {
		return d.ledger.Progress().LastAck.After(start.Add(res.Took)), nil
	}); err != nil {
		return err
	}
	o := d.ledger.OutageBetween(start, time.Now())
	d.report.Planned = Planned{From: string(res.From), To: string(res.To), TookMS: res.Took.Milliseconds(), OutageMS: o.Longest.Milliseconds(), Refused: failures(o.Errors)}
	d.screen.At(o.End, "planned failover %s→%s: %s, longest interruption of the writer %s", res.From, res.To, observe.Millis(res.Took), observe.Millis(o.Longest))
	return nil
}

func failures(by map[string]int64) (n int64) {
	for _, k := range by {
		n += k
	}
	return n
}

// verify compares the acknowledged rows with the rows of every replica.
func (d *demo) verify(ctx context.Context) error {
	d.screen.Busy("comparing ledger, conditions and contents on every replica")
	s, err := observe.Primary(ctx, d.lab)
	if err != nil {
		return err
	}
	if err := observe.Await(ctx, observe.RejoinBudget, "all replicas to be SYNCHRONIZED", func(ctx context.Context) (bool, error) {
		return observe.Synchronized(ctx, d.lab, len(d.lab.Nodes()), "")
	}); err != nil {
		return err
	}
	if d.report.LSN, err = caughtUp(ctx, d.lab, string(s.Node)); err != nil {
		return err
	}
	found, err := inspect(ctx, d.lab, true)
	if err != nil {
		return err
	}
	for _, f := range found {
		v, err := d.ledger.Verify(ctx, d.lab.DSN(f.node))
		if err != nil {
			return fmt.Errorf("ledger on %s: %w", f.node, err)
		}
		d.report.Replicas = append(d.report.Replicas, replica(f, v))
	}
	return nil
}
