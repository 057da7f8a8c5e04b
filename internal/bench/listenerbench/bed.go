package listenerbench

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/daemon"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
)

// listenerBed is a server, and what stands before it.
type listenerBed struct {
	dir      string
	server   *pgtest.Server
	listener *measuredListener
	reusing  *measuredListener // with BACKEND_REUSE = ON
	second   *measuredListener // without event loops; nil if not asked for
	ports    map[string]int
	proxies  map[string]int  // process numbers by way
	peerCmds []*exec.Cmd     // the other proxies
	life     context.Context // of its processes; end ends it
	end      context.CancelFunc
}

func newListenerBed(ctx context.Context, b *ListenerBench) (_ *listenerBed, err error) {
	bed, err := newServerBed(ctx, map[string]int{
		wayDirect: b.O.Port, wayHAProxy: b.O.Port + 1, wayPgBouncer: b.O.Port + 2, wayListener: b.O.Port + 3, wayPlain: b.O.Port + 4, wayReuse: b.O.Port + 5,
	})
	if err != nil {
		return nil, err
	}
	if err := bed.listeners(bed.life, b); err != nil {
		bed.close()
		return nil, err
	}
	bed.peers(bed.life, b)
	b.Programs["server"] = bed.version(filepath.Join(bed.server.Bin(), "postgres"), "--version")
	b.Programs["pgbench"] = bed.version("pgbench", "--version")
	return bed, nil
}

// newServerBed starts the server, with its data. Nothing stands before it yet.
func newServerBed(ctx context.Context, ports map[string]int) (_ *listenerBed, err error) {
	ctx, cancel := context.WithCancel(ctx)
	bed := &listenerBed{ports: ports, proxies: map[string]int{}, life: ctx, end: cancel}
	defer func() {
		if err != nil {
			bed.close()
		}
	}()
	if bed.dir, err = os.MkdirTemp("/tmp", "cbl"); err != nil {
		return nil, err
	}
	if err := os.Chmod(bed.dir, 0o755); err != nil { //nolint:gosec // the server's user passes through
		return nil, err
	}
	if err := bed.write("hba", "local all all trust\nhost all secret all scram-sha-256\nhost all all all trust\n"); err != nil {
		return nil, err
	}
	if err := bed.certificate(); err != nil {
		return nil, err
	}
	if bed.server, err = pgtest.NewWith(pgtest.Options{Port: bed.ports[wayDirect], Settings: []string{
		"listen_addresses=127.0.0.1", "autovacuum=off", "port=" + strconv.Itoa(bed.ports[wayDirect]), "max_connections=200", "hba_file=" + filepath.Join(bed.dir, "hba"), "ssl=on",
		"ssl_cert_file=" + filepath.Join(bed.dir, "cert.pem"), "ssl_key_file=" + filepath.Join(bed.dir, "key.pem"), "unix_socket_permissions=0777",
	}}); err != nil {
		return nil, err
	}
	return bed, bed.fill(ctx)
}

// listeners starts ours.
func (l *listenerBed) listeners(ctx context.Context, b *ListenerBench) (err error) {
	socket := l.socket()
	if l.listener, err = l.startListener(ctx, wayListener, socket, l.server.DSN()); err != nil {
		return err
	}
	l.proxies[wayListener] = l.listener.Pid()
	if l.reusing, err = l.startListener(ctx, wayReuse, socket, l.server.DSN()); err != nil {
		return err
	}
	l.proxies[wayReuse] = l.reusing.Pid()
	if !b.O.Both {
		b.Missing[wayPlain] = "not asked for"
		return nil
	}
	if l.second, err = l.startListener(ctx, wayPlain, socket, l.server.DSN()); err == nil {
		l.proxies[wayPlain] = l.second.Pid()
	}
	return err
}

// socket is the server's private socket.
func (l *listenerBed) socket() string {
	return filepath.Join(l.server.Dir(), ".s.PGSQL."+strconv.Itoa(l.ports[wayDirect]))
}

func (l *listenerBed) startListener(ctx context.Context, way, socket, dsn string) (*measuredListener, error) {
	return startListener(ctx, "", listenerNode{
		Listen: "127.0.0.1:" + strconv.Itoa(l.ports[way]), NoLoops: way == wayPlain, Reuse: way == wayReuse, Socket: socket, DSN: dsn, Profile: processorProfile(way),
		Cert: filepath.Join(l.dir, "cert.pem"), Key: filepath.Join(l.dir, "key.pem"),
	})
}

// processorProfile is where that listener's processor profile goes; empty: nowhere.
func processorProfile(way string) string {
	if file := os.Getenv("COTERIE_BENCH_PROFILE"); file != "" {
		return file + "." + way
	}
	return ""
}

func (l *listenerBed) close() {
	for _, m := range []*measuredListener{l.listener, l.reusing, l.second} {
		if m != nil {
			_ = m.Stop()
		}
	}
	l.end()
	for _, p := range l.peerCmds {
		_ = p.Wait() // killed by the end of its context
	}
	if l.server != nil {
		_ = l.server.Remove()
	}
	_ = os.RemoveAll(l.dir)
}

// write makes a file that only the server's user can read and that is never changed.
func (l *listenerBed) write(name, text string) error {
	path := filepath.Join(l.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return l.give(path)
}

func (l *listenerBed) give(path string) error {
	cred, err := serverCredential()
	if err != nil || cred == nil {
		return err
	}
	return os.Chown(path, int(cred.Uid), int(cred.Gid))
}

// serverCredential is the user as whom servers run where this process is root; nil: as this process.
func serverCredential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := daemon.ServerUser()
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}, nil
}

func (l *listenerBed) certificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"localhost"}}
	cert, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(l.write("cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		l.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))))
}

// fill makes the tables of pgbench, of a size that stays in memory, and the role with a password.
func (l *listenerBed) fill(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, l.server.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "create role secret login password 'secret'; create role app login; grant create on schema public to app; grant app to secret"); err != nil {
		return err
	}
	cmd := l.client(ctx, wayDirect, "-i", "-q", "-s", "20")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pgbench -i: %w\n%s", err, out)
	}
	return nil
}

func (l *listenerBed) client(ctx context.Context, way string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "pgbench", append([]string{"-h", "127.0.0.1", "-p", strconv.Itoa(l.ports[way])}, args...)...)
	cmd.Args = append(cmd.Args, "postgres")
	cmd.Env = append(os.Environ(), "PGUSER=app", "PGSSLMODE=disable", "PGGSSENCMODE=disable")
	return cmd
}

func (l *listenerBed) version(name string, args ...string) string {
	out, err := exec.Command(name, args...).CombinedOutput() //nolint:noctx // ends at once
	if err != nil {
		return err.Error()
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(first)
}

// peers starts the other proxies, where they are installed.
func (l *listenerBed) peers(ctx context.Context, b *ListenerBench) {
	server := "127.0.0.1:" + strconv.Itoa(l.ports[wayDirect])
	haproxy := fmt.Sprintf("global\n nbthread %d\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\nlisten pg\n bind 127.0.0.1:%d\n server s %s\n",
		runtime.NumCPU(), l.ports[wayHAProxy], server)
	bouncer := fmt.Sprintf("[databases]\npostgres = host=127.0.0.1 port=%d dbname=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\npool_mode = session\n"+
		"auth_type = trust\nauth_file = %[3]s/users\nmax_client_conn = 1000\ndefault_pool_size = 100\nclient_tls_sslmode = allow\nclient_tls_cert_file = %[3]s/cert.pem\nclient_tls_key_file = %[3]s/key.pem\n"+
		"ignore_startup_parameters = extra_float_digits\nlog_connections = 0\nlog_disconnections = 0\n", l.ports[wayDirect], l.ports[wayPgBouncer], l.dir)
	start := func(way, file, text string, command ...string) {
		if err := l.start(ctx, way, file, text, command); err != nil {
			b.Missing[way] = err.Error()
			b.say("%s: %v", way, err)
			return
		}
		b.Settings[way], b.Programs[way] = text, l.version(command[0], map[string]string{wayHAProxy: "-v", wayPgBouncer: "--version"}[way])
	}
	if err := l.write("users", "\"app\" \"\"\n"); err != nil {
		b.Missing[wayPgBouncer] = err.Error()
		return
	}
	start(wayHAProxy, "haproxy.cfg", haproxy, "haproxy", "-db", "-f")
	start(wayPgBouncer, "pgbouncer.ini", bouncer, "pgbouncer")
}

func (l *listenerBed) start(ctx context.Context, way, file, text string, command []string) error {
	path, err := exec.LookPath(command[0])
	if errors.Is(err, exec.ErrNotFound) {
		path, err = exec.LookPath("/usr/sbin/" + command[0])
	}
	if err != nil {
		return fmt.Errorf("%s is not installed", command[0])
	}
	command[0] = path
	if err := l.write(file, text); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], filepath.Join(l.dir, file))...)
	cred, err := serverCredential()
	if err != nil {
		return err
	}
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: cred, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the death signal is the thread's
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	l.proxies[way], l.peerCmds = cmd.Process.Pid, append(l.peerCmds, cmd)
	address := "127.0.0.1:" + strconv.Itoa(l.ports[way])
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not listen: %w", way, err)
		}
	}
}
