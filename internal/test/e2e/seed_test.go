package e2e

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lab"
)

// TestEndToEndSeed gives a secondary a new copy on request: a copy with a damaged page, one whose target dies in the
// middle, and one that begins with a directory.
func TestEndToEndSeed(t *testing.T) {
	long(t)
	g := newGroup(t, lab.Options{})
	sql(t, g.ReadWrite(), "create table bulk as select g, repeat(md5(g::text), 8) as x from generate_series(1, 100000) g")
	if t.Run("a damaged page", func(t *testing.T) { mendsDamage(t, g) }) && t.Run("the target dies", func(t *testing.T) { tellsOfADeadTarget(t, g) }) && t.Run("from a directory", func(t *testing.T) { beginsFromDirectory(t, g) }) {
		g.judge(t)
		g.down(t)
	}
}

// mendsDamage damages a page on a secondary's disk, has it found by --verify and replaced by --full.
func mendsDamage(t *testing.T, g *group) {
	was := g.ready(t)
	victim := secondaries(was)[0]
	g.askPrivately(t, *was.Primary, "checkpoint")
	g.replayed(t, *was.Primary, victim)
	g.askPrivately(t, victim, "checkpoint")
	file := g.askPrivately(t, victim, "select pg_relation_filepath('bulk')")
	verify := []string{"seed", victim, "--verify", "--node", g.node(*was.Primary)}
	if a := must(t, verify...); !strings.Contains(a.err, " 0 damaged") {
		t.Errorf("a good copy: %s%s", a.out, a.err)
	}
	flip(t, filepath.Join(g.node(victim), "pgdata", file), 5*8192+4000)
	if a := coterie(t, verify...); a.code != 3 || !strings.Contains(a.err, "page 5 of "+file) || !strings.Contains(a.err, "coterie replica seed "+victim+" --full") {
		t.Errorf("a damaged copy: exit code %d, %s%s", a.code, a.out, a.err)
	}
	if a := coterie(t, "seed", victim, "--node", g.node(*was.Primary)); a.code == 0 || !strings.Contains(a.err, "--full") {
		t.Errorf("a whole copy was made anew unasked: exit code %d, %s%s", a.code, a.out, a.err)
	}
	a := must(t, "seed", victim, "--full", "--watch", "--node", g.node(*was.Primary))
	if !strings.Contains(a.err, "copied from "+*was.Primary) {
		t.Errorf("it says %s%s", a.out, a.err)
	}
	if share := onWire(t, a.err); share > 0.5 {
		t.Errorf("of a copy with one page damaged, %.0f %% came over the wire: %s", 100*share, a.err)
	}
	g.ready(t)
	if a := must(t, verify...); !strings.Contains(a.err, " 0 damaged") {
		t.Errorf("after it was mended: %s%s", a.out, a.err)
	}
	if now := g.ready(t); now.Epoch != was.Epoch {
		t.Errorf("epoch %d after %d: a secondary's copy is no reason for a failover", now.Epoch, was.Epoch)
	}
}

// tellsOfADeadTarget kills a secondary while its copy is made: the others still show it, and a watching command sees
// its end once it is back.
func tellsOfADeadTarget(t *testing.T, g *group) {
	was := g.ready(t)
	victim := secondaries(was)[0]
	limit := func(rate string) {
		g.says(t, *was.Primary, "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+victim+"' WITH (SEED_MAX_RATE = "+rate+")")
	}
	limit("1 MB")
	must(t, "seed", victim, "--full", "--node", g.node(*was.Primary))
	g.await(t, victim+" is being seeded", func(s lab.Status) bool {
		r, _ := s.Replica(victim)
		if strings.Contains(r.Now, "waiting for checkpoint") {
			g.askPrivately(t, *was.Primary, "checkpoint") // the copy's is spread under a limit
		}
		return r.Sync == "INITIALIZING" && strings.Contains(r.Now, "MiB")
	})
	if err := g.Kill(victim, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	const rows = "SELECT p.internal_state_desc, p.role_desc, a.current_state FROM sys.dm_hadr_physical_seeding_stats p, sys.dm_hadr_automatic_seeding a WHERE p.internal_state_desc LIKE '%not seen since%' AND a.completion_time IS NULL"
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		r, err := g.answered(t, *was.Primary, rows)
		if err == nil && len(r.Rows) == 1 {
			t.Log(r.Rows[0])
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is dead, and the primary tells of its copy: %v, %v", victim, r.Rows, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	watch := exec.CommandContext(ctx, exe, "seed", victim, "--watch", "--node", g.node(*was.Primary))
	out, err := watch.StdoutPipe()
	if err == nil {
		err = watch.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), "target "+victim+" not seen since") {
		t.Log(lines.Text())
	}
	limit("0")
	if err := g.Start(victim); err != nil {
		t.Fatal(err)
	}
	last := lines.Text()
	for lines.Scan() { // until it ends
		t.Log(lines.Text())
	}
	if err := watch.Wait(); err != nil || !strings.Contains(last, "goes on when it is back") {
		t.Errorf("who watches saw %q, and then: %v", last, err)
	}
	g.ready(t)
	g.replayed(t, *was.Primary, victim)
}

// beginsFromDirectory loses a secondary's data directory and gives it back from an older copy elsewhere.
func beginsFromDirectory(t *testing.T, g *group) {
	was := g.ready(t)
	victim := secondaries(was)[0]
	if err := g.Kill(victim, lab.WhatNode); err != nil {
		t.Fatal(err)
	}
	pgdata, snapshot := filepath.Join(g.node(victim), "pgdata"), filepath.Join(g.node(victim), "restored")
	if out, err := exec.Command("cp", "-a", pgdata, snapshot).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.RemoveAll(pgdata); err != nil {
		t.Fatal(err)
	}
	g.says(t, *was.Primary, "ALTER AVAILABILITY GROUP [lab] MODIFY REPLICA ON N'"+victim+"' WITH (SEEDING_MODE = MANUAL)")
	sql(t, g.ReadWrite(), "update bulk set x = 'new' where g % 1000 = 0")
	if err := g.Start(victim); err != nil {
		t.Fatal(err)
	}
	if a := coterie(t, "seed", victim, "--from", "restored", "--node", g.node(*was.Primary)); a.code != 2 {
		t.Errorf("a relative directory: exit code %d, %s%s", a.code, a.out, a.err)
	}
	if a := coterie(t, "seed", victim, "--from", "/nowhere", "--node", g.node(*was.Primary)); a.code == 0 {
		t.Errorf("a directory that is not there was taken: %s%s", a.out, a.err)
	}
	a := must(t, "seed", victim, "--from", snapshot, "--watch", "--node", g.node(*was.Primary))
	if share := onWire(t, a.err); share > 0.5 {
		t.Errorf("of a copy that began with an older one, %.0f %% came over the wire: %s", 100*share, a.err)
	}
	g.ready(t)
	g.replayed(t, *was.Primary, victim)
	if got := g.askPrivately(t, victim, "select count(*) from bulk where x = 'new'"); got != "100" {
		t.Errorf("%s has %s of the rows that were changed since", victim, got)
	}
	if err := os.RemoveAll(snapshot); err != nil {
		t.Fatal(err)
	}
}

// replayed waits until a secondary has replayed what the primary has written.
func (g *group) replayed(t *testing.T, primary, secondary string) {
	t.Helper()
	want := g.askPrivately(t, primary, "select pg_current_wal_lsn()::text")
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if g.askPrivately(t, secondary, "select pg_last_wal_replay_lsn() >= '"+want+"'") == "true" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has not replayed %s after %v", secondary, want, patience)
		}
	}
}

// flip changes one bit of a file.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var c [1]byte
	if _, err := f.ReadAt(c[:], at); err != nil {
		t.Fatal(err)
	}
	c[0] ^= 1
	if _, err := f.WriteAt(c[:], at); err != nil {
		t.Fatal(err)
	}
}

// summary is what coterie replica seed prints about a finished copy.
var summary = regexp.MustCompile(`: ([0-9.]+) (\w+) of files, .* were there, on the wire ([0-9.]+) (\w+)`)

// onWire returns the share of a copy that came over the network, according to its summary.
func onWire(t *testing.T, said string) float64 {
	t.Helper()
	m := summary.FindStringSubmatch(said)
	if m == nil {
		t.Fatalf("it does not say how much came: %s", said)
	}
	bytes := func(n, unit string) float64 {
		v, err := strconv.ParseFloat(n, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v * map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
	}
	return bytes(m[3], m[4]) / bytes(m[1], m[2])
}
