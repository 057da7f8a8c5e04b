package listener

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/listener/serverlog"
	"github.com/coteriedb/coterie/internal/postgres/login"
)

// server is a real PostgreSQL on a private socket with trust, as the agent runs it.
type server struct {
	name, dir string // dir holds data/ and is the socket directory
	cmd       *exec.Cmd
	args      []string // further ones
	port      string   // empty: 5432
	log       *os.File // its standard error
}

// The three servers of the tests: independent copies of one cluster, told apart by cluster_name.
var servers struct {
	once sync.Once
	err  error
	root string
	list map[ag.ReplicaID]*server
}

func TestMain(m *testing.M) {
	code := m.Run()
	if pairs.pair != nil {
		pairs.pair.stop()
	}
	for _, s := range servers.list {
		s.stop()
	}
	if servers.root != "" {
		_ = os.RemoveAll(servers.root)
	}
	os.Exit(code)
}

var errNoPostgres = errors.New("PostgreSQL server programs not found")

func postgresBin() (string, error) {
	if dirs := filepath.SplitList(os.Getenv("COTERIE_PG_BINDIRS")); len(dirs) > 0 { // the first listed is the one to test on
		return dirs[0], nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		if p, err := exec.LookPath("initdb"); err == nil {
			return filepath.Dir(p), nil
		}
		return "", errNoPostgres
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// asServer makes cmd run as the ordinary user that PostgreSQL insists on.
func asServer(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := postgresUser()
	if err != nil {
		return err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return nil
}

func postgresUser() (uid, gid int, err error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, err
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid, nil
}

func startServers() error {
	bin, err := postgresBin()
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("/tmp", "cotl")
	if err != nil {
		return err
	}
	servers.root = root
	if os.Geteuid() == 0 {
		uid, gid, err := postgresUser()
		if err != nil {
			return err
		}
		if err := os.Chown(root, uid, gid); err != nil {
			return err
		}
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = root
		if err := asServer(cmd); err != nil {
			return err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		return nil
	}
	first := filepath.Join(root, "a")
	if err := run("mkdir", first); err != nil {
		return err
	}
	if err := run(filepath.Join(bin, "initdb"), "-N", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", first+"/data"); err != nil {
		return err
	}
	servers.list = make(map[ag.ReplicaID]*server)
	for _, id := range []string{"b", "c"} {
		if err := run("cp", "-r", first, filepath.Join(root, id)); err != nil {
			return err
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		s := &server{name: id, dir: filepath.Join(root, id)}
		if err := s.start(bin); err != nil {
			return err
		}
		servers.list[ag.ReplicaID(id)] = s
	}
	return nil
}

func (s *server) start(bin string) error {
	var err error
	s.cmd = exec.Command(filepath.Join(bin, "postgres"), append([]string{
		"-D", s.dir + "/data", "-c", "listen_addresses=", "-c", "port=" + cmp.Or(s.port, "5432"),
		"-c", "unix_socket_directories=" + s.dir, "-c", "unix_socket_permissions=0777", "-c", "fsync=off", "-c", "cluster_name=" + s.name,
		"-c", "shared_buffers=16MB", "-c", "max_connections=60", "-c", "logging_collector=off", "-c", "wal_level=logical",
	}, s.args...)...)
	if err := asServer(s.cmd); err != nil {
		return err
	}
	if s.log, err = memoryLog(s.name); err != nil {
		return err
	}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if conn, err := s.connect(context.Background(), "postgres"); err == nil {
			return conn.Close(context.Background())
		}
	}
	text := make([]byte, 1<<16)
	n, _ := s.log.ReadAt(text, 0)
	return fmt.Errorf("PostgreSQL %s did not start:\n%s", s.name, text[:n])
}

// memoryLog returns what the keeper gives a server as its standard error.
func memoryLog(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	_, err1 := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK)
	_, err2 := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND)
	return os.NewFile(uintptr(fd), name), errors.Join(err1, err2)
}

// reader returns a reader of the server's log that relies on it.
func (s *server) reader(t *testing.T) *serverlog.Reader {
	t.Helper()
	return readerOf(t, s.log)
}

func readerOf(t *testing.T, log *os.File) *serverlog.Reader {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", log.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r := serverlog.NewReader()
	if err := r.Use(f); err != nil {
		t.Fatal(err)
	}
	rely := func() {
		r.Rely(serverlog.Settings{Destination: []string{"stderr"}, MinMessages: []string{"warning"}, Messages: []string{"C"}}, r.Ask())
	}
	rely()
	var reading sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); reading.Wait(); _ = r.Close() })
	reading.Go(func() {
		for {
			select {
			case <-r.Changed():
				rely()
			case <-ctx.Done():
				return
			}
		}
	})
	waitFor(t, "the log is relied on", r.Sound)
	return r
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	_ = s.cmd.Wait()
}

func (s *server) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, "host="+s.dir+" port="+cmp.Or(s.port, "5432")+" user=postgres dbname="+database)
}

// sql runs statements on the server directly, without the listener.
func (s *server) sql(t *testing.T, statements ...string) {
	t.Helper()
	conn, err := s.connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	for _, q := range statements {
		if _, err := conn.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// sleeping waits until a backend of the server sleeps in this query, which no other test has: PostgreSQL forgets a
// cancellation that comes before its query.
func (s *server) sleeping(t *testing.T, query string) {
	t.Helper()
	conn, err := s.connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	waitFor(t, "the query runs", func() bool {
		return value[bool](t, conn, "select exists(select 1 from pg_stat_activity where wait_event = 'PgSleep' and query = $1)", query)
	})
}

// group is a listener in front of the real servers, with everything around it controlled by the test.
type group struct {
	t       *testing.T
	born    time.Time // statements of before are of other tests, and may still run on the servers
	srv     *Server
	servers map[ag.ReplicaID]*server
	routes  atomic.Pointer[ag.Routes]
	gate    movingGate
	mu      sync.Mutex
	changed chan struct{}
	remote  map[ag.ReplicaID]*Server // replicas that are reached through another node's ServeBackend
	links   []*net.TCPConn           // those nodes' ends of the connections; guarded by mu, as is cuts
	cuts    bool                     // those nodes are dead
	rw, ro  string                   // addresses
	hellos  chan BackendHello

	failovers int // planned ones
}

// pathEnv chooses the data path of all groups: TestOnOtherPaths runs the relay tests again with it.
const pathEnv = "COTERIE_LISTENER_TEST_PATH"

func newGroup(t *testing.T, change func(*Config)) *group {
	t.Helper()
	servers.once.Do(func() { servers.err = startServers() })
	if errors.Is(servers.err, errNoPostgres) {
		t.Skip(servers.err)
	}
	if servers.err != nil {
		t.Fatal(servers.err)
	}
	g := &group{t: t, born: time.Now(), servers: servers.list, changed: make(chan struct{}), remote: make(map[ag.ReplicaID]*Server)}
	g.hellos = make(chan BackendHello, 1000)
	g.routes.Store(fullRoutes(1))
	cfg := Config{
		ReadWrite: "127.0.0.1:0", ReadOnly: "127.0.0.1:0",
		Routes: g.routes.Load, Changed: g.change, Backend: g.backend, Verifier: g.verifier,
		Gate: func() time.Duration { return time.Duration(g.gate.Load()) },
	}
	cfg.FingerprintSession = func(ctx context.Context) (net.Conn, error) {
		conn, err := g.servers["a"].connect(ctx, "postgres")
		if err != nil {
			return nil, err
		}
		return login.PrepareFingerprints(ctx, conn, FingerprintStatement)
	}
	if os.Getenv(pathEnv) == PathGoroutines {
		cfg.Loops = -1
	}
	cfg.singleWrites = os.Getenv(pathEnv) == writingSingly
	if os.Getenv(pathEnv) == PathKernel {
		cfg.offloadAfter = 1
	}
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g.srv = srv
	g.gate.srv.Store(srv)
	rw, ro := srv.Addrs()
	if len(rw) > 0 {
		g.rw = rw[0].String()
	}
	if len(ro) > 0 {
		g.ro = ro[0].String()
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(20 * time.Second):
			t.Error("Serve did not return")
		}
	})
	return g
}

// fullRoutes: a is primary and local, b and c are readable.
func fullRoutes(epoch ag.Epoch) *ag.Routes {
	return &ag.Routes{
		Epoch: epoch, Self: "a", Primary: "a", WriteOpen: true,
		Targets: []ag.Target{
			{ID: "a", Local: true, Healthy: true},
			{ID: "b", Healthy: true, Readable: true},
			{ID: "c", Healthy: true, Readable: true},
		},
		ReadList: [][]ag.ReplicaID{{"b", "c"}, {"a"}},
	}
}

func (g *group) publish(r *ag.Routes) {
	g.routes.Store(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *group) change() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.changed
}

func (g *group) backend(ctx context.Context, id ag.ReplicaID, hello BackendHello) (net.Conn, error) {
	select {
	case g.hellos <- hello:
	default:
	}
	if node, ok := g.remote[id]; ok {
		conn, far, err := linked(ctx, node, g.servers[id].dir)
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.links = append(g.links, far); g.cuts { // it has died meanwhile
			g.cut()
		}
		return conn, err
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(g.servers[id].dir, socketName))
}

// throughNode connects by TCP to a node whose ServeBackend takes over, as the endpoint does.
func throughNode(ctx context.Context, t *testing.T, node *Server, dir string) (net.Conn, error) {
	conn, _, err := linked(ctx, node, dir)
	if err != nil {
		t.Log(err)
	}
	return conn, err
}

// linked returns the node's end of that connection, too; nil if none was made.
func linked(ctx context.Context, node *Server, dir string) (conn net.Conn, far *net.TCPConn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = l.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err == nil {
			far = conn.(*net.TCPConn) //nolint:forcetypeassert // of a TCP listener
			go node.ServeBackend(context.Background(), conn, dir)
		}
	}()
	conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		_ = l.Close()
	}
	<-done
	return conn, far, err
}

// cut resets the connections to other nodes, as the death of those does. The caller holds g.mu.
func (g *group) cut() {
	for _, far := range g.links {
		if far != nil {
			_ = far.SetLinger(0)
			_ = far.Close()
		}
	}
	g.links = nil
}

func (g *group) verifier(ctx context.Context, id ag.ReplicaID, name string) (Role, error) {
	conn, err := g.servers[id].connect(ctx, "postgres")
	if err != nil {
		return Role{}, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var r Role
	var until *time.Time
	err = conn.QueryRow(ctx, `with recursive granted(oid) as (
			select m.roleid from pg_auth_members m join pg_authid a on a.oid = m.member where a.rolname = $1
			union select m.roleid from pg_auth_members m join granted g on m.member = g.oid)
		select true, coalesce(rolpassword, ''), rolcanlogin, rolvaliduntil, rolsuper, rolreplication,
			array(select a.rolname::text from granted g join pg_authid a on a.oid = g.oid)
		from pg_authid where rolname = $1`, name).Scan(&r.Found, &r.Password, &r.CanLogin, &until, &r.Super, &r.Replication, &r.MemberOf)
	if errors.Is(err, pgx.ErrNoRows) {
		return Role{}, nil
	}
	if until != nil {
		r.ValidUntil = *until
	}
	return r, err
}

// role makes a role on every server and drops it at the end of the test.
func (g *group) role(name, attributes string) {
	g.t.Helper()
	for _, s := range g.servers {
		s.sql(g.t, "create role "+name+" "+attributes)
	}
	g.t.Cleanup(func() {
		for _, s := range g.servers {
			conn, err := s.connect(context.Background(), "postgres")
			if err != nil {
				g.t.Error(err)
				continue
			}
			_, _ = conn.Exec(context.Background(), "drop owned by "+name+"; drop role "+name)
			_ = conn.Close(context.Background())
		}
	})
}

// dsn is a connection string for a TCP address of the listener.
func dsn(address, rest string) string {
	host, port, _ := net.SplitHostPort(address)
	return "host=" + host + " port=" + port + " dbname=postgres sslmode=disable connect_timeout=60 " + rest
}

func (g *group) dial(address, rest string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	return pgx.Connect(ctx, dsn(address, rest))
}

func (g *group) mustDial(address, rest string) *pgx.Conn {
	g.t.Helper()
	conn, err := g.dial(address, rest)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if os.Getenv(pathEnv) == PathKernel { // offloaded after its first answer
		for range 3 {
			if _, err := conn.Exec(context.Background(), "", pgx.QueryExecModeSimpleProtocol); err != nil {
				g.t.Fatal(err)
			}
		}
	}
	return conn
}

func value[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var v T
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := conn.QueryRow(ctx, query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// movingGate tells the server when it moves, as an agent does.
type movingGate struct {
	atomic.Int64
	srv atomic.Pointer[Server]
}

// Store moves the gate.
func (m *movingGate) Store(v int64) {
	m.Int64.Store(v)
	if s := m.srv.Load(); s != nil {
		s.GateMoved()
	}
}

// openGate moves the gate an hour ahead, closedGate a moment behind.
func openGate() int64   { return int64(boottime.Now() + time.Hour) }
func closedGate() int64 { return int64(boottime.Now() - time.Millisecond) }

// certificate makes a CA and a server certificate signed by it.
func certificate(t testing.TB) (*tls.Certificate, *x509.CertPool) {
	t.Helper()
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caRaw, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	parsed, _ := x509.ParseCertificate(caRaw)
	pool.AddCert(parsed)
	return issue(t, parsed, caKey, "localhost"), pool
}

func issue(t testing.TB, ca *x509.Certificate, caKey *ecdsa.PrivateKey, name string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	raw, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}
