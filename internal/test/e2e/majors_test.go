package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/postgres/programs"
	"github.com/coteriedb/coterie/internal/test/majors"
)

// twoMajors has labs made with the older of two major versions, and returns both.
func twoMajors(t *testing.T) (older, newer programs.Install) {
	t.Helper()
	older, newer = majors.Two(t)
	t.Setenv("COTERIE_PG_BINDIRS", older.BinDir)
	return older, newer
}

// upgradeMajor returns the command of an upgrade on a node.
func (g *group) upgradeMajor(node string, to programs.Install, more ...string) []string {
	return append([]string{"upgrade", "major", "--to", strconv.Itoa(to.Major), "--pg-bindir", to.BinDir, "--yes", "--node", g.node(node)}, more...)
}

// haveMajor waits until every replica is whole, and checks which programs run.
func (g *group) haveMajor(t *testing.T, in programs.Install) {
	t.Helper()
	g.ready(t)
	for _, n := range g.Nodes() {
		if n.Witness {
			continue
		}
		g.await(t, n.Name+" to run PostgreSQL "+in.Version, func(lab.Status) bool {
			s, err := g.status(t, n.Name)
			return err == nil && s.Version == in.Version
		})
	}
}

// newData is the directory of the new cluster of a node.
func (g *group) newData(t *testing.T, node string, from, to programs.Install) string {
	t.Helper()
	cfg, err := config.Load(g.node(node))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(cfg.PostgreSQL.Data, "-"+strconv.Itoa(to.Major)) + "-" + strconv.Itoa(to.Major)
}

// TestEndToEndMajorUpgrade upgrades a group of three replicas under load to another major version of PostgreSQL. A look
// changes nothing; every acknowledged row is there afterwards; the other replicas follow; and a failover happens.
func TestEndToEndMajorUpgrade(t *testing.T) {
	long(t)
	older, newer := twoMajors(t)
	g := newGroup(t, lab.Options{})
	s := g.ready(t)
	primary, others := *s.Primary, secondaries(s)
	sql(t, g.ReadWrite(), "CREATE TABLE big AS SELECT i, md5(i::text) AS t FROM generate_series(1, 200000) AS i")
	sql(t, g.ReadWrite(), "VACUUM FREEZE big")

	if a := coterie(t, g.upgradeMajor(others[0], newer)...); a.code != 4 || !strings.Contains(a.err, "is not the primary") {
		t.Errorf("on a secondary: %d %s", a.code, a.err)
	}
	if a := coterie(t, "upgrade", "major", "--to", strconv.Itoa(older.Major), "--node", g.node(primary)); a.code != 2 {
		t.Errorf("to the same version: %d %s", a.code, a.err)
	}
	sql(t, g.ReadWrite(), "SELECT pg_create_physical_replication_slot('mine')") // of no concern
	sql(t, g.ReadWrite(), "ALTER SYSTEM SET work_mem = '5MB'")
	var looked struct {
		Plan struct {
			Obstacles, Steps []string
			Mode             string
		} `json:"plan"`
	}
	a := must(t, g.upgradeMajor(primary, newer, "--dry-run", "--json")...)
	if err := json.Unmarshal([]byte(a.out), &looked); err != nil || len(looked.Plan.Obstacles) > 0 || len(looked.Plan.Steps) < 5 || looked.Plan.Mode != "copy" {
		t.Fatalf("%v: %s", err, a.out)
	}
	if now := g.ready(t); now.Epoch != s.Epoch || g.exists(g.newData(t, primary, older, newer)) {
		t.Error("the look has changed something")
	}

	began := time.Now()
	a = must(t, g.upgradeMajor(primary, newer)...)
	t.Logf("upgraded in %v:\n%s", time.Since(began).Round(100*time.Millisecond), a.err)
	g.haveMajor(t, newer)
	g.judge(t)
	if n := sql(t, g.ReadWrite(), "SELECT count(*) FROM big"); n != "200000" {
		t.Errorf("%s of 200000 rows", n)
	}
	if m := sql(t, g.ReadWrite(), "SHOW work_mem"); m != "5MB" {
		t.Errorf("work_mem is %s", m)
	}
	for _, x := range others {
		b, err := os.ReadFile(filepath.Join(g.node(x), "log", "agent.log"))
		if err != nil || !strings.Contains(string(b), "phase=DONE") {
			t.Errorf("%s did not follow: %v", x, err)
		}
	}
	if st, err := g.status(t, primary); err != nil || st.Maintenance != nil {
		t.Errorf("the group is still under maintenance: %+v, %v", st.Maintenance, err)
	}
	g.write(t)
	must(t, "failover", "--to", others[0], "--node", g.node(primary))
	g.ready(t)
	g.acknowledged(t, 20)
	g.judge(t)
	if a := coterie(t, "upgrade", "major", "--rollback", "--allow-data-loss", "--yes", "--node", g.node(others[0])); a.code != 4 {
		t.Errorf("a way back on a node that made no upgrade: %d %s", a.code, a.err)
	}
	g.down(t)
}

func (g *group) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// TestCrashPointsOfMajorUpgrade ends a process at each point of a major upgrade, of the way back from it, and of a
// replica that follows. Each time the group has the old cluster or the new one, with every row, and the same command
// goes on. COTERIE_CRASHPOINTS selects some by a prefix.
func TestCrashPointsOfMajorUpgrade(t *testing.T) {
	long(t)
	if os.Getenv("COTERIE_CRASHPOINTS") == "" {
		t.Skip("make crashpoints runs it (COTERIE_CRASHPOINTS=all, or the beginning of a name)")
	}
	older, newer := twoMajors(t)
	c := &crash{points: armable(t)}
	c.group = raise(t, lab.Options{Replicas: 2})
	if err := c.run(t, "CREATE TABLE kept (n int)"); err != nil {
		t.Fatal(err)
	}
	for i, name := range selected(points("a major upgrade")) {
		t.Run(name, func(t *testing.T) {
			was := c.ready(t)
			if err := c.run(t, fmt.Sprintf("INSERT INTO kept VALUES (%d)", i)); err != nil {
				t.Fatal(err)
			}
			if err := c.points.Arm(name); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			c.command(t, c.upgradeMajor(*was.Primary, newer)...)
			c.fired(t, name)
			c.revived(t)
			primary := c.finishes(t, func(primary string) []string { return c.upgradeMajor(primary, newer) })
			c.haveMajor(t, newer)
			c.keeps(t, i+1)
			t.Logf("%-20s on PostgreSQL %s after %v", name, newer.Version, time.Since(began).Round(time.Millisecond))
			c.finishes(t, func(primary string) []string {
				return []string{"upgrade", "major", "--rollback", "--allow-data-loss", "--yes", "--pg-bindir", older.BinDir, "--node", c.node(primary)}
			})
			c.haveMajor(t, older)
			c.keeps(t, i+1)
			if err := os.RemoveAll(c.newData(t, primary, older, newer)); err != nil {
				t.Fatal(err)
			}
			c.told.WriteString(fmt.Sprintf("%-20s there and back after %v\n", name, time.Since(began).Round(time.Millisecond)))
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	c.down(t)
	record(t, "make crashpoints", "COTERIE_CRASHPOINTS_RECORD", c.told.String())
}

// revived starts the agents that have ended, until all answer.
func (c *crash) revived(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes() {
		tried := time.Time{}
		c.await(t, "the agent of "+n.Name+" to answer", func(s lab.Status) bool {
			if _, err := c.status(t, n.Name); err == nil {
				return true
			}
			if r, _ := s.Replica(n.Name); r.PIDs.Agent == nil && time.Since(tried) > 5*time.Second {
				tried = time.Now()
				c.again(t, n.Name)
			}
			return false
		})
	}
}

// finishes runs a command on the node of the primary until it succeeds, as its messages say: a kill of the primary may
// have made another one. It returns the primary that it was.
func (c *crash) finishes(t *testing.T, command func(primary string) []string) (primary string) {
	t.Helper()
	for tried := 0; ; tried++ {
		c.revived(t)
		s := c.await(t, "a primary", func(s lab.Status) bool { return s.Primary != nil })
		primary, args := *s.Primary, command(*s.Primary)
		a := coterie(t, args...)
		if a.code == 0 {
			return primary
		}
		t.Logf("%q: exit code %d: %s", args, a.code, a.err)
		if tried == 8 {
			t.Fatal("it does not come to an end")
		}
		time.Sleep(2 * time.Second) // as a person would
	}
}

// keeps checks that all rows are there.
func (c *crash) keeps(t *testing.T, n int) {
	t.Helper()
	if got := sql(t, c.ReadWrite(), "SELECT count(*) FROM kept"); got != strconv.Itoa(n) {
		t.Errorf("%s of %d rows", got, n)
	}
}
