package keeper

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/keeper/datadir"
)

// bin finds PostgreSQL's programs.
func bin(t *testing.T) string {
	t.Helper()
	if dirs := filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS")); len(dirs) > 0 { // the first listed is the one to test on
		return dirs[0]
	}
	if dirs, _ := filepath.Glob("/usr/lib/postgresql/1[4-8]/bin"); len(dirs) > 0 {
		return dirs[len(dirs)-1]
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		t.Skip("no PostgreSQL here")
	}
	return filepath.Dir(path)
}

// cluster is a node with a real server.
type cluster struct {
	*node
	bin string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{bin: bin(t)}
	if os.Geteuid() == 0 {
		t.Skip("PostgreSQL refuses root")
	}
	c.node = newNode(t)
	c.postgres = filepath.Join(c.bin, "postgres")
	must(t, os.RemoveAll(c.pgdata))
	out, err := exec.Command(filepath.Join(c.bin, "initdb"), "-D", c.pgdata, "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	return c
}

func (c *cluster) request(leader bool, epoch ag.Epoch) StartRequest {
	return StartRequest{
		Leader: leader, Epoch: epoch, Postgres: c.postgres, PGData: c.pgdata, LogFile: c.logFile,
		Args: []string{
			"-D", c.pgdata, "-k", c.run, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "restart_after_crash=off",
			"-c", "hot_standby=on", "-c", "shared_buffers=16MB", "-c", "max_connections=20",
		},
	}
}

// start starts the server and waits until it answers.
func (c *cluster) start(k *Client, leader bool, epoch ag.Epoch) int {
	c.t.Helper()
	if leader {
		must(c.t, k.Arm(c.t.Context(), epoch, in(MaxLease-time.Second)))
	}
	pid, err := k.Start(c.t.Context(), c.request(leader, epoch))
	must(c.t, err)
	c.wait("PostgreSQL to answer", func() bool { return c.psql("SELECT 1").Run() == nil })
	return pid
}

func (c *cluster) psql(sql string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, "psql"), "-XAtq", "-h", c.run, "-U", "postgres", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", sql)
	cmd.Env = append(os.Environ(), "PGOPTIONS=", "LC_ALL=C")
	return cmd
}

func (c *cluster) query(sql string) string {
	c.t.Helper()
	out, err := c.psql(sql).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return strings.TrimSpace(string(out))
}

// busy starts a session that commits as fast as it can, and reads no signal of its client.
func (c *cluster) busy() (wait func()) {
	c.t.Helper()
	c.query("CREATE TABLE IF NOT EXISTS w (at timestamptz); TRUNCATE w")
	cmd := c.psql("DO $$ BEGIN LOOP INSERT INTO w VALUES (clock_timestamp()); COMMIT; END LOOP; END $$")
	must(c.t, cmd.Start())
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	c.wait("rows", func() bool { return c.query("SELECT count(*) > 50 FROM w") == "t" })
	return func() { _ = cmd.Wait() }
}

// noRowAfter starts the server again and checks that nothing was committed after that moment.
func (c *cluster) noRowAfter(k *Client, epoch ag.Epoch, moment time.Time) {
	c.t.Helper()
	c.start(k, true, epoch)
	last, err := strconv.ParseFloat(c.query("SELECT extract(epoch FROM max(at)) FROM w"), 64)
	must(c.t, err)
	if d := time.Duration(last*1e9) - time.Duration(moment.UnixNano()); d > 0 {
		c.t.Errorf("a row was committed %s after the end", d)
	}
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ctx := t.Context()
	k, _ := c.dial("a")

	t.Log("a primary whose agent vanishes while a session commits")
	c.start(k, true, 1)
	c.wait("standby.signal to be put back", func() bool { return datadir.HasStandbySignal(c.pgdata) })
	wait := c.busy()
	began := time.Now()
	must(t, k.Close())
	s := c.waitFenced()
	ended := time.Now()
	wait()
	if s.Fenced.Epoch != 1 || ended.Sub(began) > 15*time.Second { // long before the deadline
		t.Errorf("fenced after %s: %+v", ended.Sub(began), s.Fenced)
	}
	k, _ = c.dial("b")
	c.noRowAfter(k, 2, ended)

	t.Log("a postmaster that is killed: its backends end before that is told")
	wait = c.busy()
	must(t, syscall.Kill(c.status().Postmaster, syscall.SIGKILL))
	e := <-k.Exits()
	ended = time.Now()
	if left := findServers(c.pgdata, c.postgres); len(left) > 0 {
		t.Errorf("alive when the exit is told: %+v", left)
		closeAll(left)
	}
	wait()
	if e.Clean || e.Status != "signal: killed" {
		t.Errorf("exit %+v", e)
	}
	c.noRowAfter(k, 2, ended)

	t.Log("a keeper that is killed: the postmaster dies with it, and the next keeper cleans up")
	wait = c.busy()
	pid := c.status().Postmaster
	c.killKeeper()
	c.wait0("the postmaster to die", func() bool { return !alive(pid) })
	c.spawn()
	if left := findServers(c.pgdata, c.postgres); len(left) > 0 {
		t.Errorf("alive after the next keeper has come: %+v", left)
		closeAll(left)
	}
	ended = time.Now()
	wait()
	k, _ = c.dial("c")
	c.noRowAfter(k, 3, ended)
	clean, err := k.Stop(ctx, "fast", 10*time.Second)
	if err != nil || !clean {
		t.Errorf("fast stop: clean %v, %v", clean, err)
	}
	if e = <-k.Exits(); !e.Clean {
		t.Errorf("exit %+v", e)
	}
	must(t, k.Disarm(ctx, 3))

	t.Log("a standby that is promoted")
	c.start(k, false, 0)
	if got := c.query("SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("pg_is_in_recovery is %s after an unarmed start", got)
	}
	must(t, k.Arm(ctx, 4, in(15*time.Second)))
	must(t, k.Disarm(ctx, 4))
	must(t, k.Arm(ctx, 4, in(15*time.Second)))
	if got := c.query("SELECT pg_promote()"); got != "t" {
		t.Fatalf("pg_promote says %s", got)
	}
	c.wait("the promotion to be seen", func() bool { return c.status().Leader })
	c.wait("standby.signal to be put back", func() bool { return datadir.HasStandbySignal(c.pgdata) })
	wantErr(t, k.Disarm(ctx, 4), ErrLeading)
	c.query("CREATE TABLE promoted ()")

	t.Log("a foreign immediate shutdown is not clean, whatever its exit status")
	must(t, syscall.Kill(c.status().Postmaster, syscall.SIGQUIT))
	if e = <-k.Exits(); e.Clean {
		t.Errorf("exit %+v", e)
	}
	t.Log("locks of a postmaster that ended before it had written them")
	must(t, os.WriteFile(filepath.Join(c.pgdata, "postmaster.pid"), nil, 0o600))
	c.start(k, false, 0) // unplanned starts come up as a standby
	if got := c.query("SELECT pg_is_in_recovery()"); got != "t" {
		t.Errorf("pg_is_in_recovery is %s", got)
	}
	must(t, k.Fence(ctx, "test"))
	c.waitFenced()
}
