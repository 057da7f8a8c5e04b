package e2e

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/linkem"
)

// calmMinutes is how long the disturbances of the long proof last; make calm MINUTES=n takes its time.
const calmMinutes = 3

// longestPause is for how long a primary may stand still, at the profile default, without being deposed.
const longestPause = 1500 * time.Millisecond

// dirtied is how much a checkpoint has to write, of shared buffers that hold a third more.
const dirtied = 768 << 20

// disturbance is something that happens to a primary that lives.
type disturbance struct {
	name string
	once func(*calm) // disturbs it once
}

// calm is a group whose primary is disturbed and must not be deposed.
type calm struct {
	*group
	*testing.T
	primary string
	epoch   ag.Epoch
	rng     *rand.Rand
	stood   time.Duration // for which the primary stood still last
	longest time.Duration // for which it ever did
	wrong   int           // failovers that nothing excuses
	overran int           // failovers after it had stood still for longer than it may, since the host did not let it go on
}

// TestEndToEndCalm disturbs the primary of a group in all the ways that are not its death: pauses, links that flap,
// jitter, a backup, checkpoints, snapshots of its machine. None may cause a failover. It tells what the voters have
// heard meanwhile, and which silence would have been unusual.
func TestEndToEndCalm(t *testing.T) {
	long(t)
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: networks of their own need root")
	}
	during := time.Duration(setting(t, "COTERIE_CALM_MINUTES", calmMinutes)) * time.Minute
	seed := setting(t, "COTERIE_CALM_SEED", 1)
	g := newGroup(t, lab.Options{Net: lab.NetNamespaces})
	dirty(t, g)
	kinds := []disturbance{
		{fmt.Sprintf("pauses of the primary's node of up to %v", longestPause), pauses},
		{"its links cut for 1s, every 20s", flaps},
		{"its links with a delay between 0s and 200ms", jitters},
		{"a base backup of it, at full speed", backsUp},
		{fmt.Sprintf("checkpoints of it that write some %d MiB", dirtied>>20), checkpoints},
		{"snapshots of one node after the other, each of which stands still for 1s", snapshots},
	}
	var told strings.Builder
	fmt.Fprintf(&told, "a group of three replicas at the profile default and its two writers, disturbed for %v\n", during)
	failovers := 0
	for _, d := range kinds {
		t.Run(d.name, func(t *testing.T) {
			was := g.ready(t)
			c := &calm{group: g, T: t, primary: *was.Primary, epoch: was.Epoch, rng: rand.New(rand.NewPCG(uint64(seed), 0))}
			waited, began, n := processorPressure(t), time.Now(), 0
			for ; time.Since(began) < during/time.Duration(len(kinds)) && t.Context().Err() == nil; n++ {
				d.once(c)
				c.look()
			}
			pressure := 100 * (processorPressure(t) - waited).Seconds() / time.Since(began).Seconds()
			heard := c.heard()
			fmt.Fprintf(&told, "\n%s: %d times in %v", d.name, n, time.Since(began).Round(time.Second))
			if c.longest > 0 {
				fmt.Fprintf(&told, ", the longest %v", c.longest.Round(10*time.Millisecond))
			}
			fmt.Fprintf(&told, "; somebody waited for a processor %.0f %% of the time\nfalse failovers %d\n", pressure, c.wrong)
			if c.overran > 0 {
				fmt.Fprintf(&told, "failovers after a pause that took more than %v, because the host did not let the node go on in time: %d\n", longestPause, c.overran)
			}
			told.WriteString(heard)
			failovers += c.wrong
		})
	}
	fmt.Fprintf(&told, "\nfalse failovers in all %d\n", failovers)
	t.Log(told.String())
	g.judge(t)
	g.down(t)
	record(t, fmt.Sprintf("make calm MINUTES=%d SEED=%d", during/time.Minute, seed), "COTERIE_CALM_RECORD", told.String())
}

// dirty gives the servers buffers for the checkpoints, and a table to fill them with.
func dirty(t *testing.T, g *group) {
	t.Helper()
	node := g.node(*g.ready(t).Primary)
	must(t, "settings", "set", "shared_buffers=1GB", "max_wal_size=2GB", "--node", node)
	must(t, "restart", "--postgres", "--pending", "--node", node)
	now := g.ready(t)
	// A row takes a page, nearly: fillfactor leaves a page to one row of 4 kB.
	if err := g.privately(t, *now.Primary, "CREATE TABLE dirty (n int, filler text) WITH (fillfactor = 50)", "ALTER TABLE dirty ALTER filler SET STORAGE plain",
		fmt.Sprintf("INSERT INTO dirty SELECT n, repeat('x', 4096) FROM generate_series(1, %d) n", dirtied/8192)); err != nil {
		t.Fatal(err)
	}
	g.ready(t)
}

// still stops every process of a node for d. That takes a while in itself, so it may be longer.
func (c *calm) still(node string, d time.Duration) {
	c.Helper()
	began := time.Now()
	if err := c.Pause(node, lab.WhatNode); err != nil {
		c.Error(err)
	}
	time.Sleep(d - time.Since(began))
	if err := c.Resume(node); err != nil {
		c.Fatal(err)
	}
	if node == c.primary {
		c.stood = time.Since(began)
		c.longest = max(c.longest, c.stood)
	}
}

// look waits until the group is whole, and counts a failover since the last look.
func (c *calm) look() {
	c.Helper()
	now := c.ready(c.T)
	switch {
	case now.Epoch == c.epoch:
	case c.stood > longestPause:
		c.overran++
	default:
		c.wrong++
		c.Errorf("a false failover; the new primary says\n%s", must(c.T, "explain", "-vv", "--node", c.node(*now.Primary)).out)
	}
	c.epoch, c.primary, c.stood = now.Epoch, *now.Primary, 0
}

func pauses(c *calm) {
	// Stopping and continuing takes some tens of milliseconds: they count.
	c.still(c.primary, time.Duration(c.rng.Int64N(int64(longestPause-100*time.Millisecond))))
	time.Sleep(time.Duration(c.rng.Int64N(int64(4 * time.Second))))
}

func snapshots(c *calm) {
	for _, n := range c.Nodes() {
		c.still(n.Name, time.Second)
		time.Sleep(3 * time.Second)
	}
}

func flaps(c *calm) {
	if _, err := c.Cut(c.Context(), c.primary, lab.AllEnds, false, false); err != nil {
		c.Fatal(err)
	}
	time.Sleep(time.Second)
	if _, err := c.Heal(c.Context(), lab.AllEnds, lab.AllEnds, true); err != nil {
		c.Fatal(err)
	}
	time.Sleep(19 * time.Second)
}

func jitters(c *calm) {
	shape := linkem.Shape{Delay: 100 * time.Millisecond, Jitter: 100 * time.Millisecond}
	if _, err := c.Link(c.Context(), c.primary, lab.AllEnds, shape, false); err != nil {
		c.Fatal(err)
	}
	time.Sleep(20 * time.Second)
	if _, err := c.Heal(c.Context(), lab.AllEnds, lab.AllEnds, false); err != nil {
		c.Fatal(err)
	}
}

func backsUp(c *calm) {
	l, err := config.NewLayout(c.node(c.primary))
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.Context(), 5*time.Minute)
	defer cancel()
	b := exec.CommandContext(ctx, filepath.Join(server(c.T).BinDir, "pg_basebackup"), "-D", "-", "-F", "t", "-X", "none", "-c", "fast", "-d", "host="+l.Sockets()+" user=postgres sslmode=disable")
	var said strings.Builder
	b.Stdout, b.Stderr = io.Discard, &said
	if err := b.Run(); err != nil {
		c.Fatalf("%v: %s", err, said.String())
	}
}

func checkpoints(c *calm) {
	if err := c.privately(c.T, c.primary, "UPDATE dirty SET n = n + 1", "CHECKPOINT", "VACUUM dirty"); err != nil {
		c.Fatal(err)
	}
}

// rhythm is what coterie explain says of the primary's silences.
var rhythm = regexp.MustCompile(`it was heard every [^"\n]*`)

// heard returns what each voter has heard of the primary, a line each, and how often it found its silence unusual.
func (c *calm) heard() string {
	c.Helper()
	var out strings.Builder
	for _, n := range c.Nodes() {
		if n.Name == c.primary {
			continue
		}
		said := must(c.T, "explain", "--json", "--node", c.node(n.Name)).out
		found := strings.Count(c.log(n.Name, "agent.log"), `msg="silence of the primary" member=`+c.primary+" suspect=true")
		fmt.Fprintf(&out, "  %s of %s: %s; found unusual so far: %d times\n", n.Name, c.primary, last(rhythm.FindAllString(said, -1)), found)
	}
	return out.String()
}

// last returns the last of several texts: the one that is true now.
func last(texts []string) string {
	if len(texts) == 0 {
		return ""
	}
	return texts[len(texts)-1]
}
