package listenerbench

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/listener"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// listenerNode is a measured listener: a node without quorum, whose routes never change.
type listenerNode struct {
	Listen  string `json:"listen"`
	Socket  string `json:"socket"` // of the server
	DSN     string `json:"dsn"`    // the same server, for queries about roles; empty: no queries are sent, and the backends do nothing
	Cert    string `json:"cert"`
	Key     string `json:"key"`
	NoLoops bool   `json:"no_loops,omitempty"`
	Reuse   bool   `json:"reuse,omitempty"` // BACKEND_REUSE = ON
	Profile string `json:"profile,omitempty"`

	Relayed    bool `json:"relayed,omitempty"`    // the server is another node's, as for a client of a secondary's listener
	Continuity bool `json:"continuity,omitempty"` // CONTINUITY = SESSION
	Replay     bool `json:"replay,omitempty"`     // CONTINUITY = REPLAY, with Continuity
}

// nodeName is the name under which this program runs Node.
const nodeName = "bench-listener-node"

// Node returns the name and the helper that runs a listenerNode. It answers each line of its input with how late it
// was, and ends with its input.
func Node() (name string, h reexec.Helper) {
	return nodeName, reexec.Typed(func(ctx context.Context, n listenerNode, s reexec.Streams) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return n.run(ctx, cancel, bufio.NewScanner(s.In), json.NewEncoder(s.Out))
	})
}

func (n listenerNode) run(ctx context.Context, cancel func(), in *bufio.Scanner, out *json.Encoder) error {
	if _, err := moreFiles(); err != nil {
		return err
	}
	cert, err := tls.LoadX509KeyPair(n.Cert, n.Key)
	if err != nil {
		return err
	}
	roles := &benchRoles{dsn: n.DSN}
	defer roles.close()
	loops := -1
	if !n.NoLoops {
		loops = listener.Loops()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + loops) // like the agent
	}
	log, err := silentLog()
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	lease, routes := boottime.Now()+24*time.Hour, benchRoutes
	if n.Relayed {
		routes = relayedRoutes
	}
	srv, err := listener.New(listener.Config{
		Loops:     loops,
		ReadWrite: n.Listen, Certificate: func() *tls.Certificate { return &cert },
		Routes: func() *ag.Routes { return routes }, Continuity: func() bool { return n.Continuity }, Replay: func() bool { return n.Replay },
		Backend: func(ctx context.Context, _ ag.ReplicaID, _ listener.BackendHello) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.Socket)
		},
		Fingerprint: roles.fingerprint, FingerprintSession: roles.session, Reuse: func() bool { return n.Reuse },
		Verifier: roles.ask, Gate: func() time.Duration { return lease },
		FlushLSN: func(context.Context) (ag.LSN, error) { return 0, errors.New("nothing is confirmed here") },
		Durable:  func(context.Context, ag.LSN) error { return errors.New("nothing is confirmed here") },
		Log:      log,
		Rules:    benchRules(), Limits: listener.Limits{Connections: 40_000, PreAuth: 40_000},
	})
	if err != nil {
		return err
	}
	if n.Profile != "" {
		f, err := os.Create(n.Profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var running sync.WaitGroup
	w := &watch{}
	running.Go(func() { w.run(ctx) })
	running.Go(func() { _ = srv.Serve(ctx) })
	defer running.Wait()
	defer cancel()
	if err := out.Encode("ready"); err != nil {
		return err
	}
	for in.Scan() {
		var answer any = w.late()
		if in.Text() == askHeap {
			answer = liveHeap()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return in.Err()
}

// silentLog returns the log of a server that logs nothing, which is looked at as that of a node's own server is.
func silentLog() (*serverlog.Reader, error) {
	fd, err := unix.MemfdCreate("server log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("a log in memory: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return nil, fmt.Errorf("a log in memory: %w", err)
	}
	r := serverlog.NewReader()
	if err := r.Use(os.NewFile(uintptr(fd), "server log")); err != nil {
		return nil, err
	}
	r.Rely(serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"warning"}, Messages: []string{"C"}}, r.Ask())
	return r, nil
}

var benchRoutes = &ag.Routes{
	Epoch: 1, Self: "a", Primary: "a", WriteOpen: true, ReadList: [][]ag.ReplicaID{{"a"}},
	Targets: []ag.Target{{ID: "a", Local: true, Healthy: true}},
}

// relayedRoutes are those of a node that is not the primary.
var relayedRoutes = &ag.Routes{
	Epoch: 1, Self: "b", Primary: "a", WriteOpen: true, ReadList: [][]ag.ReplicaID{{"a"}},
	Targets: []ag.Target{{ID: "a", Healthy: true}, {ID: "b", Local: true, Healthy: true}},
}

// askHeap is the line that asks for the bytes in use.
const askHeap = "heap"

// liveHeap returns the bytes of the heap and of the stacks that are in use after a collection.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC() // what the first has finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// benchRules are the same as the server's rules: a password for one role, none for the others.
func benchRules() []hba.Rule {
	rules, err := hba.Parse(strings.NewReader("host all secret all scram-sha-256\nhost all all all trust\n"))
	if err != nil {
		panic(err)
	}
	return rules
}

// benchRoles asks the server about roles, through one session that stays, as the agent does.
type benchRoles struct {
	dsn  string
	mu   sync.Mutex
	conn *pgx.Conn // guarded by mu
}

func (b *benchRoles) ask(ctx context.Context, _ ag.ReplicaID, user string) (r listener.Role, err error) {
	if b.dsn == "" {
		return listener.Role{Found: true, CanLogin: true}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.connect(ctx); err != nil {
		return r, err
	}
	err = b.conn.QueryRow(ctx, "select true, coalesce(rolpassword, ''), rolcanlogin from pg_authid where rolname = $1", user).Scan(&r.Found, &r.Password, &r.CanLogin)
	return r, err
}

// fingerprint returns the fingerprint of a login, as the agent does.
func (b *benchRoles) fingerprint(ctx context.Context, user, database string) (listener.LoginFingerprint, error) {
	if b.dsn == "" {
		return listener.LoginFingerprint{Exclusive: true}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.connect(ctx); err != nil {
		return listener.LoginFingerprint{}, err
	}
	m, err := login.FingerprintOn(ctx, b.conn, user, database)
	return listener.LoginFingerprint{Text: m.Text, Exclusive: m.Exclusive, NotReusable: m.NotReusable}, err
}

// session opens a session for the queries of the listener's event loops.
func (b *benchRoles) session(ctx context.Context) (net.Conn, error) {
	if b.dsn == "" {
		return nil, errors.New("nothing is asked here")
	}
	c, err := pgx.Connect(ctx, b.dsn)
	if err != nil {
		return nil, err
	}
	return login.PrepareFingerprints(ctx, c, listener.FingerprintStatement)
}

// connect opens the session. The caller holds mu.
func (b *benchRoles) connect(ctx context.Context) (err error) {
	if b.conn == nil || b.conn.IsClosed() {
		b.conn, err = pgx.Connect(ctx, b.dsn)
	}
	return err
}

func (b *benchRoles) close() {
	if b.conn != nil {
		_ = b.conn.Close(context.Background())
	}
}

// watch notes how late a goroutine is that wakes every 10 ms.
type watch struct {
	mu  sync.Mutex
	all []time.Duration // guarded by mu
}

func (w *watch) run(ctx context.Context) {
	const every = 10 * time.Millisecond
	for ctx.Err() == nil {
		began := time.Now()
		time.Sleep(every)
		over := time.Since(began) - every
		w.mu.Lock()
		w.all = append(w.all, over)
		w.mu.Unlock()
	}
}

// late is how late it was since it was last asked.
func (w *watch) late() late {
	w.mu.Lock()
	all := slices.Sorted(slices.Values(w.all))
	w.all = nil
	w.mu.Unlock()
	if len(all) == 0 {
		return late{}
	}
	ms := func(p float64) float64 { return float64(all[int(p*float64(len(all)-1))]) / 1e6 }
	return late{len(all), ms(0.5), ms(0.999), ms(1)}
}

// moreFiles lets this process open as many files as it may, up to 65,536, and returns how many that are.
func moreFiles() (files int, err error) {
	const want = 65_536
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if more := (unix.Rlimit{Cur: want, Max: max(l.Max, want)}); l.Cur < want && unix.Setrlimit(unix.RLIMIT_NOFILE, &more) == nil {
		l = more // a privileged process
	} else if l.Cur < l.Max {
		l.Cur = l.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			return 0, err
		}
	}
	return int(min(l.Cur, want)), nil
}

// measuredListener is a listenerNode that runs.
type measuredListener struct {
	*reexec.Process
	answers *bufio.Scanner
}

// startListener starts a listener of the program exe; "": of this one.
func startListener(ctx context.Context, exe string, n listenerNode) (*measuredListener, error) {
	p, err := reexec.Start(ctx, reexec.Spec{Exe: exe, Name: nodeName, Config: n}, reexec.Stderr(os.Stderr))
	if err != nil {
		return nil, err
	}
	m := &measuredListener{p, bufio.NewScanner(p.Out)}
	if !m.answers.Scan() {
		return nil, errors.Join(errors.New("the listener did not start"), m.Stop())
	}
	return m, nil
}

func (m *measuredListener) late() (*late, error) {
	var l late
	return &l, m.ask("", &l)
}

// heap returns the bytes that are in use.
func (m *measuredListener) heap() (n uint64, err error) {
	err = m.ask(askHeap, &n)
	return n, err
}

func (m *measuredListener) ask(line string, answer any) error {
	if _, err := fmt.Fprintln(m.In, line); err != nil {
		return err
	}
	if !m.answers.Scan() {
		return errors.New("the listener has ended")
	}
	return json.Unmarshal(m.answers.Bytes(), answer)
}
