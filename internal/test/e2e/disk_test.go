package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lab"
)

// smallDisk is a file system of its own, of a given size, for the WAL of one node. It is in a file in memory, so that
// it can be made to fail: when the memory is full, the disk refuses writes.
type smallDisk struct {
	t      *testing.T
	memory string
	mount  string
	loop   string
}

func run1(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// newDisk makes the file system. Only root may mount one.
func newDisk(t *testing.T, dir string, mb int) *smallDisk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts a file system, which takes root")
	}
	d := &smallDisk{t: t, memory: filepath.Join(dir, "memory"), mount: filepath.Join(dir, "disk")}
	mkdir(t, d.memory)
	mkdir(t, d.mount)
	t.Cleanup(d.close)
	run1(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm", 2*mb), "tmpfs", d.memory)
	image := filepath.Join(d.memory, "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, int64(mb)<<20); err != nil {
		t.Fatal(err)
	}
	run1(t, "mkfs.ext4", "-q", "-F", image)
	loop, err := exec.Command("losetup", "--find", "--show", image).Output()
	if err != nil {
		t.Skipf("no loop device: %v", err)
	}
	d.loop = strings.TrimSpace(string(loop))
	run1(t, "mount", d.loop, d.mount)
	return d
}

func (d *smallDisk) close() {
	_ = exec.Command("umount", "-l", d.mount).Run()
	if d.loop != "" {
		_ = exec.Command("losetup", "-d", d.loop).Run()
	}
	_ = exec.Command("umount", "-l", d.memory).Run()
}

func (d *smallDisk) free() int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.mount, &st); err != nil {
		d.t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize >> 20
}

// fill leaves that many MB free; clear frees all.
func (d *smallDisk) fill(leave int64) {
	d.t.Helper()
	run1(d.t, "fallocate", "-l", strconv.FormatInt(d.free()-leave, 10)+"M", filepath.Join(d.mount, "ballast"))
}

func (d *smallDisk) clear() { _ = os.Remove(filepath.Join(d.mount, "ballast")) }

// breakDown takes the memory away under the disk: writes are accepted and lost, and a sync fails with an input/output
// error.
func (d *smallDisk) breakDown() {
	_ = exec.Command("dd", "if=/dev/zero", "of="+filepath.Join(d.memory, "ballast"), "bs=1M").Run() // ends when the memory is full
}

// moveWAL puts the WAL of a node on the disk.
func (g *group) moveWAL(t *testing.T, node string, d *smallDisk) {
	t.Helper()
	g.kill(t, node)
	wal, on := filepath.Join(g.node(node), "pgdata", "pg_wal"), filepath.Join(d.mount, "wal")
	run1(t, "cp", "-a", wal, on)
	run1(t, "chown", "--reference", filepath.Join(g.node(node), "pgdata"), d.mount)
	if err := os.RemoveAll(wal); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(on, wal); err != nil {
		t.Fatal(err)
	}
	g.start(t, node)
	g.back(t, node)
}

// back waits until a started node is a secondary again, and the group is whole.
func (g *group) back(t *testing.T, node string) lab.Status {
	t.Helper()
	return g.await(t, node+" back", func(s lab.Status) bool {
		r, _ := s.Replica(node)
		return r.PIDs.Postgres != nil && r.Role == ag.RoleSecondary && s.Ready()
	})
}

func fillWAL(t *testing.T, uri string, mb int) error {
	t.Helper()
	for range mb / 20 {
		a := exec.Command("psql", uri, "-XAtqc", "insert into filler select md5(random()::text) from generate_series(1,150000)")
		if out, err := a.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	return nil
}

// TestEndToEndDisk has the disk of a primary's WAL fill up, and keeps the WAL of an absent secondary.
func TestEndToEndDisk(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip(err)
	}
	g, d := onSmallDisk(t, 400)
	if t.Run("no room for WAL", func(t *testing.T) { walFull(t, g, d) }) &&
		t.Run("a secondary stays away for too long", func(t *testing.T) { awayTooLong(t, g, d) }) {
		g.down(t)
	}
}

// TestEndToEndLostWrite breaks the disk under the WAL of the primary.
func TestEndToEndLostWrite(t *testing.T) {
	long(t)
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip(err)
	}
	g, d := onSmallDisk(t, 200)
	lostWrite(t, g, d)
	if !t.Failed() {
		g.down(t)
	}
}

// onSmallDisk makes a group whose primary, n2, has its WAL on a disk of that many megabytes.
func onSmallDisk(t *testing.T, megabytes int) (*group, *smallDisk) {
	g := newGroup(t, lab.Options{})
	d := newDisk(t, filepath.Dir(g.Dir()), megabytes)
	g.moveWAL(t, "n2", d)
	sql(t, g.ReadWrite(), "create table filler (x text)")
	g.failover(t, "n2")
	return g, d
}

// walFull: PostgreSQL stops, another replica leads, no role flaps, and the full one is back when its disk has free
// space.
func walFull(t *testing.T, g *group, d *smallDisk) {
	was := g.ready(t)
	mark := len(g.log("n2", "agent.log"))
	d.fill(25)
	err := fillWAL(t, g.DSN("n2"), 300)
	t.Logf("the writer was told: %v", err)
	now := g.newPrimary(t, was)
	g.acknowledged(t, 50)
	time.Sleep(20 * time.Second)
	s, serr := g.Status(t.Context())
	if serr != nil || s.Epoch != now.Epoch {
		t.Errorf("epoch %d after %d: it flaps", s.Epoch, now.Epoch)
	}
	log := g.log("n2", "agent.log")[mark:] // it may come back at once as a secondary, which needs little room, or wait until there is some
	if ended := strings.Count(log, `msg="server ended"`); !strings.Contains(log, "No space left on device") || ended > 3 {
		t.Errorf("its log does not say why, or it was started again and again: it ended %d times", ended)
	}
	d.clear()
	g.back(t, "n2")
	if _, err := os.Readlink(filepath.Join(g.node("n2"), "pgdata", "pg_wal")); err != nil { // a copy that was made anew has its WAL in itself
		if err := os.RemoveAll(filepath.Join(d.mount, "wal")); err != nil {
			t.Fatal(err)
		}
		g.moveWAL(t, "n2", d)
	}
	must(t, "resume", "n2", "--trust", "--node", g.node("n1"))
	g.judgeAndGoOn(t)
}

// awayTooLong: the WAL that slots keep for an absent secondary is bounded, so that the primary's disk does not fill;
// the secondary is made anew when it comes back.
func awayTooLong(t *testing.T, g *group, d *smallDisk) {
	time.Sleep(6 * time.Second) // until the others know that n2 may lead
	g.failover(t, "n2")
	g.ready(t)
	sql(t, g.DSN("n2"), "alter system set max_wal_size = '96MB'")
	sql(t, g.DSN("n2"), "alter system set min_wal_size = '32MB'")
	sql(t, g.DSN("n2"), "select pg_reload_conf()")
	g.kill(t, "n3")
	was, err := g.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mark := len(g.log("n3", "agent.log"))
	if err := fillWAL(t, g.DSN("n2"), 700); err != nil {
		t.Fatalf("the primary's disk: %v", err)
	}
	t.Logf("%d MB free, slots: %s", d.free(), sql(t, g.DSN("n2"), "select slot_name || ' ' || wal_status from pg_replication_slots"))
	g.start(t, "n3")
	now := g.back(t, "n3")
	if now.Epoch != was.Epoch {
		t.Errorf("epoch %d after %d", now.Epoch, was.Epoch)
	}
	if log := g.log("n3", "agent.log")[mark:]; !strings.Contains(log, "no longer keeps the WAL") || !done(log, "seed") {
		t.Error("n3 was not made anew")
	}
	g.judgeAndGoOn(t)
}

// lostWrite: a copy on a disk that lost a write no longer leads, is not started again, and is made anew on a sound
// disk.
func lostWrite(t *testing.T, g *group, d *smallDisk) {
	was := g.ready(t)
	if *was.Primary != "n2" {
		t.Fatalf("%s leads", *was.Primary)
	}
	d.breakDown()
	_ = fillWAL(t, g.DSN("n2"), 100)
	g.newPrimary(t, was)
	g.acknowledged(t, 50)
	s := g.await(t, "n2 under quarantine", func(lab.Status) bool {
		st, err := g.status(t, "n1")
		m := member(st, "n2")
		return err == nil && m.Quarantine != "" && m.Suspended
	})
	if r, _ := s.Replica("n2"); r.Role == ag.RolePrimary { // a server that was started as a standby before the probe saw it continues, without WAL
		t.Error("it leads")
	}
	if a := coterie(t, "status", "--node", g.node("n1")); !strings.Contains(a.out, "under quarantine") || !strings.Contains(a.out, "coterie replica resume n2") {
		t.Errorf("the status does not say what to do:\n%s", a.out)
	}
	g.kill(t, "n2") // a new disk
	if err := os.RemoveAll(filepath.Join(g.node("n2"), "pgdata")); err != nil {
		t.Fatal(err)
	}
	g.start(t, "n2")
	time.Sleep(5 * time.Second)
	if _, err := os.Stat(filepath.Join(g.node("n2"), "pgdata", "global")); err == nil {
		t.Error("a copy was made before it was resumed")
	}
	must(t, "resume", "n2", "--node", g.node("n1"))
	g.back(t, "n2")
	g.judgeAndGoOn(t)
}
