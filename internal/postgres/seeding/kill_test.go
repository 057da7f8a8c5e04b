package seeding

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/postgres/seeding/datadir"
	"github.com/coteriedb/coterie/internal/postgres/seeding/fileio"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// childEnv makes this test binary a target that stops itself at a given point, for tests that kill it there.
const childEnv = "COTERIE_SEEDING_CHILD"

// child is the instruction of such a target.
type child struct {
	Addr     string
	Target   string
	StateDir string
	Space    string  // where tablespaces go
	Percent  float64 // of the files: where it stops and waits for its end; over 100: it does not
	Phase    string  // or at the beginning of which phase
	File     string  // or as soon as there is such a file in Target
	Rate     int64
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		os.Exit(runChild(text))
	}
	os.Exit(m.Run())
}

func runChild(text string) int {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		panic(err)
	}
	hang := func() {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	if c.File != "" {
		go func() {
			for !fileio.Exists(filepath.Join(c.Target, c.File)) {
				time.Sleep(10 * time.Microsecond)
			}
			hang()
		}()
	}
	_, err := Run(context.Background(), Options{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", c.Addr)
		},
		Member: "n2", Epoch: 1, Streams: 3, Target: c.Target, StateDir: c.StateDir, Compression: "OFF",
		MaxRate:       func() int64 { return c.Rate },
		TablespaceMap: func(oid uint32, _ string) (string, error) { return c.Space + strconv.Itoa(int(oid)), nil },
		NodeFiles: func(ag.CopyID) map[string][]byte {
			if c.Phase == progress.PhaseFinish {
				hang()
			}
			return nil
		},
		Progress: func(p progress.Progress) {
			if p.Total > 0 && p.Phase == progress.PhaseCopy && float64(p.Done) >= c.Percent/100*float64(p.Total) || p.Phase == c.Phase && c.Phase != "" {
				hang()
			}
		},
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// start runs a target in a process of its own, and returns whether the target killed itself.
func (c child) run(t *testing.T) (killed bool) {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err == nil {
		return false
	}
	if !errors.As(err, &exit) || !exit.Sys().(syscall.WaitStatus).Signaled() {
		t.Fatalf("the target: %v\n%s", err, out)
	}
	return true
}

// TestTargetKilled kills the target's process at several points, the commit point among them, and runs it again. In
// between, the directory either cannot be started or is whole; the second run fetches the missing rest.
func TestTargetKilled(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	points := []child{{Percent: 50}, {Percent: 1e3, Phase: progress.PhaseFinish}}
	if os.Getenv("COTERIE_LONG") != "" {
		// Around the commit point: while all is made durable, and when pg_control has just got its name.
		points = append(points, child{Percent: 1}, child{Percent: 10}, child{Percent: 90}, child{Percent: 99},
			child{Percent: 1e3, File: datadir.ControlNew}, child{Percent: 1e3, File: datadir.ControlFile})
	}
	for _, c := range points {
		t.Run(fmt.Sprintf("%.0f %% %s%s", c.Percent, c.Phase, c.File), func(t *testing.T) {
			o := s.options(t)
			c.Addr, c.Target, c.StateDir, c.Space = s.addr, o.Target, o.StateDir, filepath.Join(filepath.Dir(o.Target), "ts")
			if c.Phase+c.File == "" {
				c.Rate = 16 << 20
			}
			if c.Percent == 90 || c.Percent == 99 { // the rest then has to last longer than it takes until progress is shown
				c.Rate = 4 << 20
			}
			killed := c.run(t)
			if !killed && c.File == "" && c.Percent != 99 { // the observed state may be over before the signal arrives, or the last chunk have made it 99
				t.Fatal("it ended before it was killed")
			}
			whole := fileio.Exists(filepath.Join(o.Target, datadir.ControlFile))
			t.Logf("killed: %v, whole: %v", killed, whole)
			if whole == tree.HalfSeeded(o.Target, o.StateDir) {
				t.Errorf("pg_control is there: %v, half seeded: %v", whole, tree.HalfSeeded(o.Target, o.StateDir))
			}
			if !whole {
				b.mustRefuse(t, o)
			}
			r, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if r.Progress.Done-r.Progress.Same > r.Progress.Total && c.Percent > 40 {
				t.Errorf("nothing was found there: %+v", r.Progress)
			}
			b.mustStream(t, sock, o)
		})
	}
}

// TestSourceKilled kills the source's server, crashing it, at several points. The server is restarted and the next run
// fetches the rest.
func TestSourceKilled(t *testing.T) {
	if os.Getenv("COTERIE_LONG") == "" {
		t.Skip("NOT RUN: set COTERIE_LONG=1; TestSourceServerDies has one point of these")
	}
	b := newBed(t)
	sock := b.source(t)
	s := b.station(t, sock)
	all := t // the server that comes back serves the points after it as well
	for _, percent := range []int64{1, 10, 50, 90, 99} {
		t.Run(fmt.Sprintf("%d %%", percent), func(t *testing.T) {
			o := s.options(t)
			o.Compression, o.MaxRate = "OFF", func() int64 { return 16 << 20 }
			var once sync.Once
			o.Progress = func(p progress.Progress) {
				if p.Total > 0 && p.Done*100 >= p.Total*percent {
					once.Do(func() { b.crash(t, sock) })
				}
			}
			switch _, err := Run(t.Context(), o); {
			case err != nil:
				b.mustRefuse(t, o)
			case percent < 90: // later, everything may have come already, and the backend that ends the backup outlive its postmaster by a moment
				t.Error("a copy of a server that died in the middle counts as whole")
			}
			sock = b.start(all, filepath.Join(b.dir, "source"), "fsync=off")
			s = b.station(all, sock)
			o.Dial, o.Progress, o.MaxRate = s.dial, nil, nil
			if _, err := Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			b.stop(b.mustStream(t, sock, o))
		})
	}
}

// crash kills a server's postmaster, as the kernel does when memory runs out; its children notice.
func (b *bed) crash(t *testing.T, sock string) {
	text, err := os.ReadFile(filepath.Join(b.dir, "source", "postmaster.pid"))
	if err != nil {
		t.Error(err)
		return
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Error(err)
		return
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	b.stop(sock)
}

// TestThreeFailovers moves the leadership away half way, three times in a row; the fourth source completes the copy.
func TestThreeFailovers(t *testing.T) {
	t.Parallel()
	b, sock, s, o := begin(t)
	o.Compression, o.MaxRate = "OFF", func() int64 { return 16 << 20 }
	for epoch := uint64(1); epoch <= 3; epoch++ {
		o.Epoch = ag.Epoch(epoch)
		fresh := int64(0)
		o.Progress = func(p progress.Progress) {
			if p.Total > 0 && p.Done > p.Total/2 {
				fresh = p.Done - p.Same
				s.epoch.Store(epoch + 1)
				s.cut()
			}
		}
		if _, err := Run(t.Context(), o); err == nil {
			t.Fatalf("epoch %d: it ended although the source had lost its role", epoch)
		}
		b.mustRefuse(t, o)
		if epoch == 3 && fresh > 8<<20 {
			t.Errorf("in the third epoch %d bytes of the first half came again", fresh)
		}
	}
	o.Epoch, o.Progress, o.MaxRate = 4, nil, nil
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b.mustStream(t, sock, o)
}

// TestCorruptedStream flips bits of the received data at intervals: none of it is stored, and it is requested again.
func TestCorruptedStream(t *testing.T) {
	t.Parallel()
	b, sock, s, o := begin(t)
	o.Compression = "LZ4"
	var mu sync.Mutex
	left := 12
	s.wrap = func(c net.Conn) net.Conn {
		return &flipper{Conn: c, spoil: func(p []byte) {
			mu.Lock()
			defer mu.Unlock()
			if left > 0 && len(p) > 20000 {
				left--
				p[len(p)/2] ^= 4
			}
		}}
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if left > 0 || r.Progress.Cuts == 0 {
		t.Errorf("%d of 12 bits not flipped, %d connections given up", left, r.Progress.Cuts)
	}
	b.mustEqual(t, sock, o)
}

type flipper struct {
	net.Conn
	spoil func([]byte)
}

func (f *flipper) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	f.spoil(p[:n])
	return n, err
}

// TestMendsPagesOfATablespace damages some pages of a copy's tablespace: only these are fetched.
func TestMendsPagesOfATablespace(t *testing.T) {
	t.Parallel()
	b, sock, _, o := begin(t)
	o.Compression = "OFF"
	b.must(t, sock, "CREATE TABLE wide TABLESPACE side AS SELECT i, repeat(md5(i::text), 8) AS x FROM generate_series(1, 12000) i")
	b.must(t, sock, "VACUUM (FREEZE) wide")
	b.must(t, sock, "CHECKPOINT")
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	name := b.must(t, sock, "SELECT pg_relation_filepath('wide')") // by way of pg_tblspc, on both sides
	mine, theirs := filepath.Join(b.dir, "source", name), filepath.Join(o.Target, name)
	for _, page := range []int64{0, 130, 131, 300} {
		flip(t, theirs, 8192*page+4000)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(wire.ChunkSize / 2); r.Progress.Wire > most {
		t.Errorf("%d bytes came over the wire for four pages", r.Progress.Wire)
	}
	if fresh := r.Progress.Done - r.Progress.Same; fresh < 4*8192 || fresh > wire.ChunkSize/2 { // a few files of the cluster have changed as well
		t.Errorf("%d bytes of files are said not to have been there, of four pages", fresh)
	}
	want, err1 := os.ReadFile(mine)
	got, err2 := os.ReadFile(theirs)
	if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) || len(got) < 3*wire.ChunkSize {
		t.Errorf("%d bytes, of %d at the source, are not the same (%v)", len(got), len(want), err)
	}
}

// mustEqual starts the copy and compares it with its source: by dump, by pg_amcheck, and page by page when both have
// stopped at one position.
func (b *bed) mustEqual(t *testing.T, sock string, o Options) {
	t.Helper()
	b.mustBeEqual(t, sock, b.mustStream(t, sock, o), o)
}

// mustBeEqual is mustEqual for a copy that streams already. Both servers have stopped when it returns.
func (b *bed) mustBeEqual(t *testing.T, sock, standby string, o Options) {
	t.Helper()
	b.must(t, sock, "CREATE EXTENSION IF NOT EXISTS amcheck")
	b.vacuum(t, sock)
	b.caughtUp(t, sock, standby)
	if mine, theirs := b.dump(t, standby), b.dump(t, sock); !bytes.Equal(mine, theirs) {
		t.Errorf("the dumps differ: %d bytes and %d", len(mine), len(theirs))
	}
	check, out := b.command(t, "pg_amcheck", "-h", standby, "-p", "5432", "-U", "postgres", "--all", "--heapallindexed")
	if err := check.Run(); err != nil {
		t.Errorf("pg_amcheck: %v\n%s", err, out)
	}
	b.stop(sock) // waits until the standby has its last record
	b.stop(standby)
	b.samePages(t, filepath.Join(b.dir, "source"), o.Target)
}

// vacuum makes hints and dead rows a matter of WAL, so that equal copies have equal pages.
func (b *bed) vacuum(t *testing.T, sock string) {
	t.Helper()
	c, err := connectTo(sock)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	for _, sql := range []string{"VACUUM (FREEZE)", "CHECKPOINT"} {
		if _, err := c.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
}

func (b *bed) caughtUp(t *testing.T, sock, standby string) {
	t.Helper()
	want := b.must(t, sock, "SELECT pg_current_wal_lsn()::text")
	waitFor(t, "the standby to replay "+want, func() error {
		if ok, err := b.query(t, standby, "SELECT (pg_last_wal_replay_lsn() >= '"+want+"')::text"); err != nil || ok != "true" {
			return fmt.Errorf("not yet (%w)", err)
		}
		return nil
	})
}

func (b *bed) dump(t *testing.T, sock string) []byte {
	t.Helper()
	dump, out := b.command(t, "pg_dump", "-h", sock, "-p", "5432", "-U", "postgres", "--no-sync", "--no-unlogged-table-data", "postgres")
	if err := dump.Run(); err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, out)
	}
	return tokens.ReplaceAll(out.Bytes(), nil)
}

// tokens are of one dump, at random.
var tokens = regexp.MustCompile(`(?m)^\\(un)?restrict .*$`)

// samePages compares the main forks of all relations of both directories and of their tablespaces, but for hints and
// checksums.
func (b *bed) samePages(t *testing.T, source, target string) {
	t.Helper()
	c := &comparison{t: t}
	c.tree(0, filepath.Join(source, "base"), filepath.Join(target, "base"))
	spaces, _ := filepath.Glob(filepath.Join(source, "pg_tblspc", "[0-9]*")) // the pattern is well formed
	for _, mine := range spaces {
		oid, err := strconv.ParseUint(filepath.Base(mine), 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		before := c.compared
		c.tree(uint32(oid), followed(t, mine), followed(t, filepath.Join(target, "pg_tblspc", filepath.Base(mine))))
		if c.compared == before {
			t.Errorf("no page of tablespace %d was compared", oid)
		}
	}
	if c.compared < 500 {
		t.Errorf("%d pages compared", c.compared)
	}
	t.Logf("%d pages compared, %d differ", c.compared, c.differ)
}

func followed(t *testing.T, link string) string {
	t.Helper()
	place, err := filepath.EvalSymlinks(link)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

// comparison counts pages.
type comparison struct {
	t                *testing.T
	compared, differ int
}

func (c *comparison) tree(space uint32, mine, theirs string) {
	c.t.Helper()
	err := filepath.WalkDir(mine, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(mine, path)
		if err != nil {
			return err
		}
		listed := name
		if space == 0 {
			listed = "base/" + name
		}
		if _, pages := datadir.RelationFile(space, listed); !pages || strings.Contains(filepath.Base(name), "_") || fileio.Exists(path+"_init") {
			return nil
		}
		return c.file(name, path, filepath.Join(theirs, name))
	})
	if err != nil {
		c.t.Error(err)
	}
}

func (c *comparison) file(name, mine, theirs string) error {
	here, err := os.ReadFile(mine)
	if err != nil {
		return err
	}
	there, err := os.ReadFile(theirs)
	if err != nil || len(there) != len(here) {
		c.t.Errorf("%s has %d bytes there, %d here (%v)", name, len(there), len(here), err)
		return nil
	}
	for at := 0; at+8192 <= len(here); at += 8192 {
		c.compared++
		x, y := here[at:at+8192], there[at:at+8192]
		if !bytes.Equal(x, y) && !bytes.Equal(masked(x), masked(y)) {
			if c.differ++; c.differ < 5 {
				c.t.Errorf("page %d of %s differs at %v", at/8192, name, offsetsOf(masked(x), masked(y)))
			}
		}
	}
	return nil
}

// offsetsOf lists the first few places where two pages differ.
func offsetsOf(x, y []byte) (out []string) {
	for i := range x {
		if x[i] != y[i] && len(out) < 6 {
			out = append(out, fmt.Sprintf("%d: %02x %02x", i, x[i], y[i]))
		}
	}
	return out
}

// masked is a page without the parts that PostgreSQL changes or leaves unlogged. They are its checksum, the flags of
// the page and of its line pointers, the bytes between rows, and in rows their hints and the number of the command
// within its transaction.
func masked(page []byte) []byte {
	le := func(at int) int { return int(page[at]) | int(page[at+1])<<8 }
	lower, special := le(12), le(16)
	if special < len(page) || lower > len(page) { // an index, whose free space is all that is between
		p := bytes.Clone(page)
		clear(p[8:12])
		if upper := le(14); lower <= upper && upper <= special && special <= len(p) {
			clear(p[lower:upper])
			clear(p[len(p)-4:])
		}
		for at := 24; at+4 <= min(lower, len(p)); at += 4 {
			p[at+1] &^= 0x80
			p[at+2] &^= 0x01
		}
		return p
	}
	p := make([]byte, len(page))
	copy(p[:8], page)
	copy(p[12:20], page[12:])
	for at := 24; at+4 <= lower; at += 4 {
		pointer := le(at) | le(at+2)<<16
		off, flags, length := pointer&0x7fff, pointer>>15&3, pointer>>17
		if flags != 1 || off+length > len(p) { // not a row
			continue
		}
		copy(p[at:at+4], page[at:])
		row := p[off : off+length]
		copy(row, page[off:])
		if length >= 23 {
			clear(row[8:12]) // the command
			row[21] &^= 0x0f // xmin and xmax known to be committed or aborted
		}
	}
	return p
}
