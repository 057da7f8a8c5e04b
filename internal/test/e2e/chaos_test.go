package e2e

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/measure/ledger"
	"github.com/coteriedb/coterie/internal/measure/register"
)

// chaosMinutes is how long the faults of the long proof last. make chaos goes through all of them, for each of its
// seeds.
const chaosMinutes = 2

// judging bounds the search of the linearizability check.
const judging = time.Minute

// chaos is a group in networks of its own under everything that is checked: the ledger, registers, watchers of a count,
// a client whose commits are cancelled, and readers that try to write.
type chaos struct {
	*group
	rng      *rand.Rand
	load     *register.Load
	end      context.CancelFunc
	running  chan error
	cut      *canceller
	intruder *intruder
	paths    *pathCount
	told     strings.Builder // the text of a record of the run
}

// say logs a line, and keeps it for the record.
func (c *chaos) say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf(format, args...)
	fmt.Fprintf(&c.told, format+"\n", args...)
}

// builtOf returns the commit that is tested: the tree may change during a long test.
var builtOf, _ = exec.Command("git", "describe", "--always", "--dirty").Output()

// record keeps what a run has shown in the file that the environment names, if it names one and nothing failed.
func record(t *testing.T, command, variable, told string) {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" || t.Failed() {
		return
	}
	head := fmt.Sprintf("%s on %s, commit %s%d processors, PostgreSQL %s\n\n", command, time.Now().UTC().Format(time.DateOnly), builtOf, runtime.NumCPU(), server(t).Version)
	if err := os.WriteFile(path, []byte(head+told), 0o644); err != nil {
		t.Error(err)
	}
}

// TestEndToEndChaos kills, stops, cuts and cancels, one fault after the other in the order of the seed, and judges the
// answers that all clients got. First the judges must find a known loss: a primary whose protection is switched off.
func TestEndToEndChaos(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	seeds := chosenSeeds(t, "COTERIE_CHAOS_SEED")
	minutes := setting(t, "COTERIE_CHAOS_MINUTES", chaosMinutes)
	var told strings.Builder
	for _, seed := range seeds {
		t.Run("seed "+strconv.FormatUint(seed, 10), func(t *testing.T) { told.WriteString(play(t, seed, minutes)) })
	}
	record(t, "make chaos SEED='"+strings.Trim(fmt.Sprint(seeds), "[]")+"'", "COTERIE_CHAOS_RECORD", told.String())
}

// chosenSeeds returns the numbers that an environment variable names, 1 if it names none.
func chosenSeeds(t *testing.T, variable string) []uint64 {
	t.Helper()
	var seeds []uint64
	for _, text := range strings.Fields(cmp.Or(os.Getenv(variable), "1")) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// play plays one order of the faults: each at least once if minutes is 0, else as many as fit into that time. It
// returns which faults were applied.
func play(t *testing.T, seed uint64, minutes int) string {
	c := &chaos{group: newGroup(t, lab.Options{Net: lab.NetNamespaces}), rng: rand.New(rand.NewPCG(seed, 0))}
	c.say(t, "seed %d", seed)
	c.seesBrokenProtection(t, seed)

	c.begin(t, seed)
	faults := c.faults()
	c.rng.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	ends, done := time.Now().Add(time.Duration(minutes)*time.Minute), 0
	for ; time.Now().Before(ends) || minutes == 0 && done < len(faults); done++ {
		c.suffer(t, done, faults[done%len(faults)])
	}
	for _, f := range faults[min(done, len(faults)):] {
		c.say(t, "NOT RUN within %d min: %s", minutes, f.name)
	}
	c.stop(t)
	c.say(t, "%s", c.paths.judge(t))
	c.judgeAll(t, done)
	c.down(t)
	return c.told.String() + "\n"
}

// setting reads a number that make chaos passes.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%s: %v", name, text, err)
	}
	return n
}

// begin starts the clients with a history of their own.
func (c *chaos) begin(t *testing.T, seed uint64) {
	t.Helper()
	s := c.ready(t)
	o := register.Options{ReadWrite: []string{c.ReadWrite()}, Clients: 8, Every: 10 * time.Millisecond, Timeout: 10 * time.Second, Seed: seed}
	for _, r := range s.Replicas { // clients that stay with a node in any role: only they query an old primary again
		o.ReadWrite = append(o.ReadWrite, r.Listener.ReadWrite)
		o.ReadOnly = append(o.ReadOnly, r.Listener.ReadOnly)
	}
	writers, readers := len(o.ReadWrite), len(o.ReadOnly)
	o.ReadWrite, o.ReadOnly = withPlain(o.ReadWrite), withPlain(o.ReadOnly)
	o.Brief = slices.Concat(o.ReadWrite[writers:], o.ReadOnly[readers:])
	c.keepReadersAway(t, s)
	if c.paths == nil {
		c.paths = c.countPaths(t)
	}
	c.load = register.New(o)
	if err := c.load.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.cut, c.intruder = newCanceller(t, c.ReadWrite(), seed), newIntruder(t, c.ReadWrite(), o.ReadOnly, seed)
	ctx, cancel := context.WithCancel(context.Background())
	c.running = make(chan error, 1)
	go func() { c.running <- c.load.Run(ctx) }()
	var others sync.WaitGroup
	others.Go(func() { c.cut.run(ctx) })
	others.Go(func() { c.intruder.run(ctx) })
	c.end = func() { cancel(); others.Wait() }
	t.Cleanup(c.end)
	c.progress(t, 50)
}

// keepReadersAway gives every replica a routing list without itself: a reader then waits or is refused where none but
// the primary could take it, and stands on no primary.
func (c *chaos) keepReadersAway(t *testing.T, s lab.Status) {
	t.Helper()
	for _, r := range s.Replicas {
		var others []string
		for _, o := range s.Replicas {
			if o.Name != r.Name {
				others = append(others, "'"+o.Name+"'")
			}
		}
		c.says(t, *s.Primary, fmt.Sprintf("ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'%s' WITH (PRIMARY_ROLE (READ_ONLY_ROUTING_LIST = ((%s))))", r.Name, strings.Join(others, ", ")))
	}
}

// stop ends the clients.
func (c *chaos) stop(t *testing.T) {
	t.Helper()
	c.end()
	if err := <-c.running; err != nil {
		t.Errorf("registers: %v", err)
	}
}

// progress waits until n more operations on registers have succeeded.
func (c *chaos) progress(t *testing.T, n int) {
	t.Helper()
	want := c.load.Done() + n
	c.await(t, "operations succeed", func(lab.Status) bool { return c.load.Done() >= want })
}

// seesBrokenProtection checks that the ledger and the registers detect the loss of a primary without protection: else
// they prove nothing.
func (c *chaos) seesBrokenProtection(t *testing.T, seed uint64) {
	const tries = 5
	for try := range uint64(tries) {
		if c.breakProtection(t, seed, try) {
			return
		}
	}
	t.Fatalf("protection was off %d times, and the judges saw nothing: they prove nothing", tries)
}

// breakProtection has the clients renounce the wait for secondaries, which is their right and their loss, and kills the
// primary while no WAL leaves it. It reports whether rows were lost and registers violated. An empty
// synchronous_standby_names would not do: the agent holds answers until it has judged a changed setting.
func (c *chaos) breakProtection(t *testing.T, seed, try uint64) (seen bool) {
	was := c.ready(t)
	old := *was.Primary
	if err := c.privately(t, old, "alter role lab set synchronous_commit = local"); err != nil {
		t.Fatal(err)
	}
	c.group.end() // the writer begins anew, with that default
	if err := <-c.ended; err != nil {
		t.Errorf("writer: %v", err)
	}
	c.write(t)
	c.begin(t, seed+try)
	for _, p := range c.walsenders(old) {
		signal(t, p, syscall.SIGSTOP)
	}
	before, ops := c.ledger.Progress().Acknowledged, c.load.Done()
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if c.ledger.Progress().Acknowledged > before+10 && c.load.Done() > ops+40 {
			break
		}
	}
	if err := c.Kill(old, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	c.newPrimary(t, was)
	c.progress(t, 300)
	c.stop(t)
	c.group.end()
	if err := <-c.ended; err != nil {
		t.Errorf("writer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	v, err := c.ledger.Verify(ctx, c.ReadWrite())
	if err != nil {
		t.Fatal(err)
	}
	sql(t, c.ReadWrite(), "alter role lab reset synchronous_commit")
	history, _ := c.load.History()
	bad, undecided := register.Check(history, judging)
	c.say(t, "without protection, as it must be: %d rows lost, %d registers violated of %d operations (%d undecided)", v.Lost, len(bad), len(history), undecided)
	_ = c.ledger.Close()
	if c.ledger, err = ledger.Open(filepath.Join(filepath.Dir(c.Dir()), fmt.Sprintf("ledger after %d", try))); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(old); err != nil {
		t.Fatal(err)
	}
	c.ready(t)
	c.write(t)
	return v.Lost > 0 && len(bad) > 0
}

// judgeAll compares the answers that clients got with the rows that exist.
func (c *chaos) judgeAll(t *testing.T, faults int) {
	t.Helper()
	c.judge(t)
	history, seen := c.load.History()
	bad, undecided := register.Check(history, judging)
	for _, v := range bad {
		t.Errorf("register %d is not linearizable:", v.Key)
		for _, o := range v.History {
			t.Log(o)
		}
	}
	for _, s := range register.Backwards(seen) {
		t.Errorf("session %d at %s saw the count go back to %d, at %s", s.Session, s.Host, s.Count, s.Server)
	}
	c.cut.verify(t, c.ReadWrite(), 0)
	c.intruder.verify(t, c.ReadWrite())
	c.say(t, "%d faults; %d operations on registers, %d registers violated, %d undecided; %d looks at the count; %d commits cancelled in %d spellings; "+
		"%d writes tried by readers", faults, len(history), len(bad), undecided, len(seen), c.cut.cancelled, len(c.cut.said), c.intruder.tried.Load())
	c.equal(t)
}

// equal waits until every replica holds the same rows.
func (c *chaos) equal(t *testing.T) {
	t.Helper()
	const fingerprint = `select coalesce(md5(string_agg(x, ',' order by x)), '') from (
		select run || client || seq || md5(payload) from coterie_ledger.entry union all select k || '=' || v from coterie_register.value
		union all select 'count=' || n from coterie_register.count union all select 'row=' || id from cancelled) as all_rows(x)`
	var prints map[string]string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		prints = map[string]string{}
		for _, r := range c.ready(t).Replicas {
			prints[r.Name] = c.askPrivately(t, r.Name, fingerprint)
		}
		all := slices.Collect(func(yield func(string) bool) {
			for _, p := range prints {
				if !yield(p) {
					return
				}
			}
		})
		if slices.Sort(all); len(slices.Compact(all)) == 1 {
			return
		}
	}
	t.Errorf("the replicas differ: %v", prints)
}

// askPrivately asks a node's server on its private socket.
func (g *group) askPrivately(t *testing.T, node, query string) string {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	return sql(t, fmt.Sprintf("host=%s user=postgres dbname=postgres sslmode=disable", l.Sockets()), query)
}
