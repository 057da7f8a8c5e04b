package seedbench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/bench/linkbench"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/buildinfo"
	"github.com/coteriedb/coterie/internal/postgres/seeding/progress"
	"github.com/coteriedb/coterie/internal/postgres/seeding/source"
)

// seedBench is a server, a network of two nodes, and the bytes that pass between them.
type seedBench struct {
	o       SeedingOptions
	say     func(string, ...any)
	dir     string
	server  *pgtest.Server
	net     *linkem.Remote
	stopNet func() error
	source  *source.Source
	ctx     context.Context //nolint:containedctx // of what serves, which close ends
	cancel  context.CancelFunc
	running sync.WaitGroup
	plain   string // address of the server for pg_basebackup, in n1
	tls     *tls.Config
	addr    string // of the source, in n1
	passed  atomic.Int64
	samples *Samples
}

func newSeedBench(ctx context.Context, o SeedingOptions, say func(string, ...any)) (_ *seedBench, err error) {
	b := &seedBench{o: o, say: say, samples: &Samples{Version: buildinfo.Describe(), SizeMB: o.SizeMB, Scaled: o.SizeMB < PublishedSeedMB, Date: time.Now().UTC()}}
	b.ctx, b.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.net, b.stopNet, err = linkbench.StartBenchNetwork(1); err != nil {
		return nil, err
	}
	if b.dir = o.Dir; b.dir == "" {
		if b.dir, err = os.MkdirTemp("/var/tmp", "coterie-seeding"); err != nil {
			return nil, err
		}
	}
	if b.server, err = pgtest.New(); err != nil {
		return nil, err
	}
	if err := b.identity(); err != nil {
		return nil, err
	}
	if b.addr, err = b.serve("n1", b.serveSource); err != nil {
		return nil, err
	}
	b.plain, err = b.serve("n1", b.relay)
	b.source = source.New(source.Config{
		Data: b.server.Data(), Connect: func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, b.server.DSN()) },
		Leads: func() (ag.Epoch, bool) { return 1, true },
	})
	b.running.Go(func() { _ = b.source.Run(b.ctx) }) // returns no error
	return b, err
}

func (b *seedBench) close() {
	b.cancel()
	b.running.Wait()
	if b.server != nil {
		_ = b.server.Remove()
	}
	if b.stopNet != nil {
		_ = b.stopNet()
	}
	if b.dir != "" && b.o.Dir == "" {
		_ = os.RemoveAll(b.dir)
	}
}

// identity makes a certificate for TLS, which our own transfer uses between nodes.
func (b *seedBench) identity() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	b.tls = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}, MinVersion: tls.VersionTLS13,
		InsecureSkipVerify: true, //nolint:gosec // both ends are this process
	}
	return nil
}

// serve listens inside a node's namespace and returns its address.
func (b *seedBench) serve(node string, handle func(net.Conn)) (addr string, err error) {
	var l net.Listener
	err = linkem.Enter(b.net.Namespace(node), func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(b.net.Addr(node).String(), "0")) //nolint:noctx // ends with close
		return err
	})
	if err != nil {
		return "", err
	}
	stop := context.AfterFunc(b.ctx, func() { _ = l.Close() })
	b.running.Go(func() {
		defer stop()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.running.Go(func() {
				defer c.Close()
				end := context.AfterFunc(b.ctx, func() { _ = c.Close() })
				defer end()
				handle(c)
			})
		}
	})
	return l.Addr().String(), nil
}

func (b *seedBench) serveSource(c net.Conn) { b.source.Serve(b.ctx, "n2", tls.Server(c, b.tls)) }

// relay connects pg_basebackup to the server, which has no TCP port.
func (b *seedBench) relay(c net.Conn) {
	s, err := net.Dial("unix", filepath.Join(b.server.Dir(), ".s.PGSQL.5432")) //nolint:noctx // local
	if err != nil {
		return
	}
	defer s.Close()
	var up sync.WaitGroup
	up.Go(func() { _, _ = io.Copy(s, c); _ = s.(*net.UnixConn).CloseWrite() })
	_, _ = io.Copy(counted{c, &b.passed}, s)
	_ = c.(*net.TCPConn).CloseWrite()
	up.Wait()
}

// counted counts the bytes that are written to a connection.
type counted struct {
	io.Writer
	n *atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n.Add(int64(n))
	return n, err
}

func (b *seedBench) link(profile string) error {
	s := linkem.Profiles[profile]
	return errors.Join(b.net.Set("n1", "n2", s), b.net.Set("n2", "n1", s))
}

// identify asks the server for its version.
func (b *seedBench) identify(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.server.DSN())
	if err != nil {
		return err
	}
	return errors.Join(conn.QueryRow(ctx, "SHOW server_version").Scan(&b.samples.Server), conn.Close(ctx))
}

// load fills the server with pgbench's tables.
func (b *seedBench) load(ctx context.Context) error {
	b.say("loading %d MB", b.o.SizeMB)
	cmd, err := b.server.Command("pgbench", "-i", "-q", "-I", "dtgvp", "-s", strconv.Itoa(max(1, b.o.SizeMB/15)), "-h", b.server.Dir(), "-U", "postgres", "postgres")
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return b.checkpoint(ctx)
}

func (b *seedBench) checkpoint(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, b.server.DSN())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "CHECKPOINT")
	return errors.Join(err, conn.Close(ctx))
}

// emptied returns the directory for our next copy. It removes earlier copies first, because the disk has space for one.
func (b *seedBench) emptied(name string) (string, error) {
	if err := b.forget(); err != nil {
		return "", err
	}
	return fresh(b.dir, name)
}

// forget removes our own copies.
func (b *seedBench) forget() error {
	return errors.Join(os.RemoveAll(filepath.Join(b.dir, "ours")), os.RemoveAll(filepath.Join(b.dir, "throttled")))
}

// seedOnce makes a copy into an empty directory.
func (b *seedBench) seedOnce(ctx context.Context, arm, compression, profile string) copySample {
	target, err := b.emptied("ours")
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	return b.seedInto(ctx, arm, seedTarget{Dir: target, Compression: compression, Profile: profile})
}

func (b *seedBench) seedInto(ctx context.Context, arm string, s seedTarget) copySample {
	began := time.Now()
	phases := phaseTimes{at: began}
	var wire, pid atomic.Int64
	// This process and the server do the source's part, and the target has a process of its own. The server counts for
	// every arm.
	source := func() float64 { return ownTime() + b.serverTime() }
	before, spent := source(), 0.0
	filling := func() float64 { return processTime(int(pid.Load())) }
	t := startTrack(source, filling, wire.Load)
	p, err := b.fill(ctx, s, func(id int, p progress.Progress) bool {
		pid.Store(int64(id))
		wire.Store(p.Wire)
		phases.note(p)
		spent = processTime(id)
		return true
	})
	t.stop()
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	return copySample{
		track: t, Arm: arm, Seconds: time.Since(began).Seconds(), Wire: p.Wire, Bytes: p.Total, SourceCPU: source() - before, TargetCPU: spent, Codec: p.Codec,
		Phases: phases.String(),
	}
}

// phaseTimes is the duration of each phase.
type phaseTimes struct {
	now   string
	at    time.Time
	spent []string
}

func (t *phaseTimes) note(p progress.Progress) {
	if p.Phase == t.now {
		return
	}
	if t.now != "" {
		t.spent = append(t.spent, fmt.Sprintf("%s %.2f s", t.now, time.Since(t.at).Seconds()))
	}
	t.now, t.at = p.Phase, time.Now()
}

func (t *phaseTimes) String() string { return strings.Join(t.spent, ", ") }

// resumed kills a target when half returns true and runs it again. The second run is measured.
func (b *seedBench) resumed(ctx context.Context, arm string, half func(progress.Progress) bool) copySample {
	target, err := b.emptied("ours")
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	s := seedTarget{Dir: target, Compression: "AUTO"}
	_, err = b.fill(ctx, s, func(_ int, p progress.Progress) bool { return !half(p) })
	if !errors.Is(err, errKilled) {
		return copySample{Arm: arm, Err: fmt.Sprintf("it was over before it was killed: %v", err)}
	}
	return b.seedInto(ctx, arm, s)
}

// halfOfTheWire returns a function that reports whether half of the bytes of this round's whole copy have arrived.
func (b *seedBench) halfOfTheWire() func(progress.Progress) bool {
	half := b.wholeWire() / 2
	return func(p progress.Progress) bool { return float64(p.Wire) >= half }
}

// wholeWire returns how many bytes the last whole copy over the slow link sent; 0 if there was none.
func (b *seedBench) wholeWire() float64 {
	for _, c := range slices.Backward(b.samples.Copies) {
		if c.Link == "wan-good" && c.Arm == armOurs && c.Err == "" {
			return float64(c.Wire)
		}
	}
	return 0
}

// damaged flips a byte in 1 % of the pages of the existing copy and repairs the copy. It reads the copy from memory,
// where a server that has just stopped leaves its pages, or from the disk, which then bounds it.
func (b *seedBench) damaged(ctx context.Context, arm, profile string) copySample {
	target := filepath.Join(b.dir, "ours")
	const page = 8192
	chance := mrand.New(mrand.NewPCG(1, 2)) //nolint:gosec // the same pages in every run
	err := filepath.WalkDir(filepath.Join(target, "pgdata", "base"), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // our own copy, which nobody else can enter
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return err
		}
		for at := int64(0); at+page <= st.Size(); at += page {
			if chance.IntN(100) != 0 {
				continue
			}
			if _, err := f.WriteAt([]byte{byte(chance.IntN(256))}, at+int64(chance.IntN(page))); err != nil {
				return err
			}
		}
		if arm == armMended {
			_, err = io.Copy(io.Discard, f)
			return err
		}
		// A copy that was not used lately has no pages in memory, and no page that the disk lacks. With dirty pages,
		// reads past the page cache would first wait for their write.
		return errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	})
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	unix.Sync()
	return b.seedInto(ctx, arm, seedTarget{Dir: target, Compression: "AUTO", Profile: profile})
}

// baseBackup runs pg_basebackup in the target's namespace.
func (b *seedBench) baseBackup(_ context.Context, arm, compress string) copySample {
	target, err := fresh(b.server.Dir(), "peer")
	if err == nil {
		err = b.forget()
	}
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	defer func() { _ = os.RemoveAll(target) }()
	host, port, err := net.SplitHostPort(b.plain)
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	cmd, err := b.server.Command("pg_basebackup", "-D", filepath.Join(target, "d"), "-h", host, "-p", port, "-U", "postgres", "-X", "none",
		"--checkpoint=fast", "--compress="+compress)
	if err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	if cmd.SysProcAttr.Credential != nil {
		c := cmd.SysProcAttr.Credential
		if err := os.Chown(target, int(c.Uid), int(c.Gid)); err != nil {
			return copySample{Arm: arm, Err: err.Error()}
		}
	}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	before, server, began := b.passed.Load(), b.serverTime(), time.Now()
	cmd.SysProcAttr.Pdeathsig = 0 // the thread that starts it ends first
	if err := linkem.Enter(b.net.Namespace("n2"), cmd.Start); err != nil {
		return copySample{Arm: arm, Err: err.Error()}
	}
	t := startTrack(b.serverTime, func() float64 { return processTime(cmd.Process.Pid) }, b.passed.Load)
	err = cmd.Wait()
	t.stop()
	if err != nil {
		return copySample{Arm: arm, Err: fmt.Sprintf("%v: %s", err, strings.TrimSpace(out.String()))}
	}
	took, used := time.Since(began).Seconds(), cmd.ProcessState
	return copySample{
		track: t, Arm: arm, Seconds: took, Wire: b.passed.Load() - before, Bytes: treeSize(filepath.Join(target, "d")),
		SourceCPU: b.serverTime() - server, TargetCPU: (used.UserTime() + used.SystemTime()).Seconds(),
	}
}

var tpsLine = regexp.MustCompile(`tps = ([0-9.]+)`)

// tpcb runs pgbench's own transactions on the source, with and without a seeding throttled to 20 MB/s beside them.
func (b *seedBench) tpcb(ctx context.Context) error {
	if err := b.link("metro"); err != nil {
		return err
	}
	for range b.o.Rounds {
		for _, with := range []bool{false, true} {
			tps, err := b.tpcbOnce(ctx, with)
			if err != nil {
				return err
			}
			b.samples.TPCB = append(b.samples.TPCB, tpcbSample{with, tps})
			b.say("TPC-B, seeding beside it %v: %.0f tps", with, tps)
		}
	}
	return nil
}

func (b *seedBench) tpcbOnce(ctx context.Context, with bool) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	if with {
		target, err := b.emptied("throttled")
		if err == nil {
			err = b.checkpoint(ctx) // otherwise the checkpoint of the copy, which is spread under a limit, lasts minutes
		}
		if err != nil {
			return 0, err
		}
		copying := make(chan struct{})
		var once sync.Once
		beside.Go(func() {
			_, _ = b.fill(ctx, seedTarget{Dir: target, Compression: "AUTO", MaxRate: 20e6}, func(_ int, p progress.Progress) bool { // cancelled when pgbench ends
				if p.Phase == progress.PhaseCopy {
					once.Do(func() { close(copying) })
				}
				return true
			})
		})
		select {
		case <-copying:
		case <-time.After(seedPatience):
			return 0, errors.New("the throttled seeding did not begin")
		}
	}
	cmd, err := b.server.Command("pgbench", "-n", "-c", "4", "-j", "1", "-T", "10", "-h", b.server.Dir(), "-U", "postgres", "postgres")
	if err != nil {
		return 0, err
	}
	out, err := cmd.CombinedOutput()
	m := tpsLine.FindSubmatch(out)
	if err != nil || m == nil {
		return 0, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

func treeSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				n += info.Size()
			}
		}
		return nil
	})
	return n
}
