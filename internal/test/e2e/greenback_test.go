package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag/major"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	nodemajors "github.com/coteriedb/coterie/internal/node/majors"
	"github.com/coteriedb/coterie/internal/postgres/programs"
)

// backTo is the command that brings a group back to the older version.
func (g *group) backTo(primary string, older programs.Install, flags ...string) []string {
	return append([]string{"upgrade", "major", "--rollback", "--yes", "--pg-bindir", older.BinDir, "--node", g.node(primary)}, flags...)
}

// follows waits until the old cluster follows, and returns the state of the upgrade.
func (g *group) follows(t *testing.T, primary string) (u major.Upgrade) {
	t.Helper()
	layout, err := config.NewLayout(g.node(primary))
	if err != nil {
		t.Fatal(err)
	}
	g.await(t, "the old cluster to follow", func(lab.Status) bool {
		u, err = nodemajors.Read(layout)
		if err == nil && u.Return != nil && u.Return.Why != "" {
			t.Fatalf("the way back has ended: %s", u.Return.Why)
		}
		return err == nil && u.Return != nil && u.Return.Open && strings.Contains(u.Return.Progress, "follows:")
	})
	return u
}

// TestEndToEndBlueGreenAndBack upgrades a group under load by blue/green and brings it back. Every row that was
// acknowledged before, between and after is there, the sequences go on, and the session goes on both ways.
func TestEndToEndBlueGreenAndBack(t *testing.T) {
	long(t)
	older, newer := twoMajors(t)
	g := newGroup(t, lab.Options{Replicas: 2, Profile: os.Getenv("COTERIE_GREEN_PROFILE")})
	g.logical(t)
	for _, s := range []string{
		"CREATE TABLE counted (id int PRIMARY KEY, n bigint)", "INSERT INTO counted VALUES (1, 0)", "CREATE SEQUENCE seq", "SELECT setval('seq', 4711)", "ALTER TABLE coterie_ledger.entry REPLICA IDENTITY FULL",
	} {
		sql(t, g.ReadWrite(), s)
	}
	primary := *g.ready(t).Primary
	w := g.counts(t)
	must(t, g.upgradeMajor(primary, newer, "--blue-green", "--primary-only")...)
	w.goesOn(t)
	there := time.Duration(w.longest.Swap(0))
	g.follows(t, primary)
	sql(t, g.ReadWrite(), "SELECT setval('seq', 5000)")
	w.goesOn(t)
	if a := coterie(t, g.backTo(primary, older, "--allow-data-loss")...); a.code != 4 || !strings.Contains(a.err, "--finish") {
		t.Errorf("a loss is accepted that need not be: %d %s", a.code, a.err)
	}
	a := must(t, "upgrade", "major", "--status", "--node", g.node(primary))
	if !strings.Contains(a.out, "way back with every row until") {
		t.Errorf("the status does not tell of the way back: %s", a.out)
	}
	must(t, g.backTo(primary, older)...)
	w.goesOn(t)
	took, err := w.stop()
	t.Logf("the session waited for %v at most on the way there, %v on the way back", there.Round(time.Millisecond), took.Round(time.Millisecond))
	if err != nil || w.ended.Load() > 0 {
		t.Errorf("the session ended %d times: %v", w.ended.Load(), err)
	}
	g.haveMajor(t, older)
	for q, want := range map[string]string{"SELECT n FROM counted": fmt.Sprint(w.counted.Load()), "SELECT nextval('seq')": "5001", "SELECT count(*) FROM pg_publication": "0"} {
		if got := sql(t, g.ReadWrite(), q); got != want {
			t.Errorf("%s: %q, not %q", q, got, want)
		}
	}
	g.judge(t)
	g.await(t, "nothing to be left of the replication", func(lab.Status) bool {
		return sql(t, g.ReadWrite(), "SELECT count(*) FROM pg_subscription") == "0"
	})
	if s := g.greenSlots(t); len(s) > 0 {
		t.Errorf("slots are left: %v", s)
	}
	g.down(t)
}

// TestWaysBackThatEnd ends the way back in each of the ways in which it may: by name, without a slot that is left, and
// while the group goes on.
func TestWaysBackThatEnd(t *testing.T) {
	long(t)
	older, newer := twoMajors(t)
	g := raise(t, lab.Options{Replicas: 2})
	g.logical(t)
	sql(t, g.ReadWrite(), "CREATE TABLE kept (n int PRIMARY KEY)")
	sql(t, g.ReadWrite(), "INSERT INTO kept SELECT generate_series(1, 1000)")
	for _, f := range []struct {
		what, why string
		do        func(t *testing.T, s lab.Status)
	}{
		{"a table is made", "definitions", func(t *testing.T, _ lab.Status) { sql(t, g.ReadWrite(), "CREATE TABLE made AS SELECT 1 AS n") }},
		{"a slot is dropped", "slot", func(t *testing.T, s lab.Status) {
			g.askAsServer(t, *s.Primary, `DO $$ BEGIN FOR i IN 1..100 LOOP BEGIN
				PERFORM pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name LIKE 'coterie%' AND active;
				PERFORM pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'coterie%';
				RETURN; EXCEPTION WHEN object_in_use THEN END; END LOOP; END $$`)
		}},
		{"an administrator ends it", "administrator", func(t *testing.T, s lab.Status) {
			must(t, "upgrade", "major", "--finish", "--node", g.node(*s.Primary))
		}},
		{"another replica leads", "another leadership", func(t *testing.T, s lab.Status) {
			must(t, g.upgradeMajor(*s.Primary, newer)...)
			must(t, "failover", "--to", secondaries(s)[0], "--node", g.node(*s.Primary))
		}},
	} {
		t.Run(f.what, func(t *testing.T) {
			was := g.ready(t)
			must(t, g.upgradeMajor(*was.Primary, newer, "--blue-green", "--primary-only")...)
			u := g.follows(t, *was.Primary)
			f.do(t, was)
			layout, err := config.NewLayout(g.node(*was.Primary))
			if err != nil {
				t.Fatal(err)
			}
			g.await(t, "the way back to end", func(lab.Status) bool {
				now, err := nodemajors.Read(layout)
				return err == nil && now.Return != nil && !now.Return.Open && strings.Contains(now.Return.Why, f.why) && len(g.greenSlots(t)) == 0 && !g.exists(filepath.Join(u.From.Data, "postmaster.pid"))
			})
			if got := sql(t, g.ReadWrite(), "SELECT count(*) FROM kept"); got != "1000" {
				t.Errorf("%s of 1000 rows", got)
			}
			if a := coterie(t, g.backTo(*was.Primary, older)...); a.code != 4 {
				t.Errorf("the way back is taken: %d %s", a.code, a.err)
			}
			if f.why == "another leadership" {
				return
			}
			must(t, g.backTo(*was.Primary, older, "--allow-data-loss")...)
			g.haveMajor(t, older)
			if err := os.RemoveAll(u.To.Data); err != nil {
				t.Fatal(err)
			}
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	g.down(t)
}

// TestCrashPointsOfTheWayBack ends the primary's agent at each point of the way back. The old cluster follows again, or
// the way back has ended by name; each time no row is lost.
func TestCrashPointsOfTheWayBack(t *testing.T) {
	c, older, newer := greenCrash(t)
	// The first two are those of every switch: the old cluster has everything, and nothing names it yet.
	for i, name := range append([]string{"switch.quiet", "switch.stopped"}, selected(points("the way back from an upgrade by blue/green"))...) {
		t.Run(name, func(t *testing.T) {
			primary := *c.ready(t).Primary
			early := name == "return.started" || name == "return.following"
			if early {
				if err := c.points.Arm(name); err != nil {
					t.Fatal(err)
				}
			}
			c.command(t, c.upgradeMajor(primary, newer, "--blue-green", "--primary-only")...)
			if !early {
				c.follows(t, primary)
				if err := c.points.Arm(name); err != nil {
					t.Fatal(err)
				}
			}
			if name == "return.ended" {
				c.command(t, "upgrade", "major", "--finish", "--node", c.node(primary))
			} else if !early {
				c.command(t, c.backTo(primary, older)...)
			}
			c.fired(t, name)
			c.revived(t)
			if err := c.run(t, fmt.Sprintf("INSERT INTO kept VALUES (%d)", i)); err != nil {
				t.Fatal(err)
			}
			if name == "return.ended" {
				c.await(t, "nothing to be left of the way back", func(lab.Status) bool { return len(c.greenSlots(t)) == 0 })
				c.keeps(t, i+1)
				return
			}
			c.finishes(t, func(primary string) []string { return c.backTo(primary, older) })
			c.haveMajor(t, older)
			c.keeps(t, i+1)
			if err := os.RemoveAll(c.newData(t, primary, older, newer)); err != nil {
				t.Fatal(err)
			}
			c.told.WriteString(fmt.Sprintf("%-20s back with every row\n", name))
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	c.down(t)
}

// askAsServer asks a node's server on its private socket, as its user.
func (g *group) askAsServer(t *testing.T, node, query string) string {
	t.Helper()
	out, err := g.asServer(t, node, query).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", query, err, out)
	}
	return strings.TrimSpace(string(out))
}

// asServer is the command that does so.
func (g *group) asServer(t *testing.T, node, query string) *exec.Cmd {
	t.Helper()
	l, err := config.NewLayout(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(server(t).BinDir, "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", l.Sockets(), "-U", "postgres", "-d", "postgres", "-c", query)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: serverUser(t)}
	return cmd
}

// greenSlots lists the logical slots on all nodes.
func (g *group) greenSlots(t *testing.T) (names []string) {
	t.Helper()
	for _, n := range g.Nodes() {
		if n.Witness {
			continue
		}
		if s := g.askAsServer(t, n.Name, "SELECT coalesce(string_agg(slot_name, ' '), '') FROM pg_replication_slots WHERE slot_type = 'logical'"); s != "" {
			names = append(names, n.Name+": "+s)
		}
	}
	return names
}
