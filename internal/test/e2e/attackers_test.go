package e2e

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// attackers is the environment variable that makes this program the process that attacks: the JSON of an attack. It is
// a process of its own so that the honest clients, which measure, do not share its runtime.
const attackers = "COTERIE_E2E_ATTACK"

// attack is a group that is attacked without credentials, and by a role that may only read the views.
type attack struct {
	Clients   []string // client ports
	Endpoints []string // ports between nodes, TCP and UDP
	HTTP      []string
	Viewer    []string // connection strings of the consoles
}

// attackSources is the number of addresses of the attackers. They are addresses of this host's loopback, and none of
// them is the address of a member or of an honest client.
const attackSources = 16

// abuse is one kind of attack: each of its workers repeats do as fast as it can.
type abuse struct {
	name    string
	workers int
	do      func(ctx context.Context, a attack, n int) error
}

var abuses = []abuse{
	{"HTTP requests", 16, abuseHTTP},
	{"idle connections", 400, abuseIdle},
	{"half-open connections", 100, abuseHalfOpen},
	{"TLS handshakes", 16, abuseTLS},
	{"hostile startup packets", 8, abuseStartup},
	{"logins of strangers", 100, abuseLogin},
	{"cancel requests", 8, abuseCancel},
	{"joins", 8, abuseJoin},
	{"datagrams", 2, abuseDatagrams},
	{"console bombs", 4, abuseConsole},
}

// attackMain attacks until its standard input ends, and then prints how often each abuse was tried.
func attackMain(text string) error {
	var a attack
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	tries := make([]atomic.Int64, len(abuses))
	var wg sync.WaitGroup
	for i, b := range abuses {
		for w := range b.workers {
			wg.Go(func() {
				for n := w; ctx.Err() == nil; n += b.workers {
					try, done := context.WithTimeout(ctx, 40*time.Second)
					err := b.do(try, a, n)
					done()
					tries[i].Add(1)
					if err != nil { // refused: again, but not in a loop that only costs this host's processor
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
	}
	wg.Wait()
	for i, b := range abuses {
		_, _ = fmt.Printf("%-24s %d\n", b.name, tries[i].Load())
	}
	return nil
}

// from connects to an address from one of the attackers' addresses. The connection is reset when it is closed, which
// leaves nothing behind on this host.
func from(ctx context.Context, n int, network, address string) (net.Conn, error) {
	ip := net.IPv4(127, 66, 0, byte(1+n%attackSources))
	d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: ip}}
	if network == "udp" {
		d.LocalAddr = &net.UDPAddr{IP: ip}
	}
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
		return tcp, nil
	}
	return c, nil
}

func pick(all []string, n int) string { return all[n/attackSources%len(all)] }

// send connects, sends and reads what comes for so long.
func send(ctx context.Context, n int, address string, data []byte, wait time.Duration) error {
	c, err := from(ctx, n, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write(data); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(wait))
	_, err = io.Copy(io.Discard, c)
	return err
}

func abuseHTTP(ctx context.Context, a attack, n int) error {
	paths := []string{"/primary", "/metrics", "/api/v1/status", "/replica", "/health", "/" + strings.Repeat("x", 8000)}
	return send(ctx, n, pick(a.HTTP, n), []byte("GET "+paths[n%len(paths)]+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 5*time.Second)
}

// all returns every TCP port.
func (a attack) all() []string {
	return append(append(append([]string{}, a.Clients...), a.Endpoints...), a.HTTP...)
}

func abuseIdle(ctx context.Context, a attack, n int) error {
	return send(ctx, n, pick(a.all(), n), nil, 30*time.Second)
}

func abuseHalfOpen(ctx context.Context, a attack, n int) error {
	first := [][]byte{{0}, {22, 3, 1}, {0, 0, 0, 8, 4, 210, 22, 47, 22, 3, 1, 1, 0}, []byte("GET / HTTP")}
	return send(ctx, n, pick(a.all(), n), first[n%len(first)], 30*time.Second)
}

// handshake completes a TLS handshake without a certificate.
func handshake(ctx context.Context, c net.Conn, protocols ...string) (*tls.Conn, error) {
	t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols})
	return t, t.HandshakeContext(ctx)
}

func abuseTLS(ctx context.Context, a attack, n int) error {
	c, err := from(ctx, n, "tcp", pick(a.Clients, n))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ask := []byte{0, 0, 0, 8, 4, 210, 22, 47}
	if _, err := c.Write(ask); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(c, ask[:1]); err != nil {
		return err
	}
	_, err = handshake(ctx, c)
	return err
}

// startupPacket is one with these parameters.
func startupPacket(parameters ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, 196608)
	for _, p := range parameters {
		body = append(append(body, p...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(4+len(body))), body...)
}

func abuseStartup(ctx context.Context, a attack, n int) error {
	var packet []byte
	switch n / attackSources % 4 {
	case 0:
		packet = startupPacket("user", "x", "options", strings.Repeat(`-c a.b=\ `, 1000))
	case 1:
		many := []string{"user", "x"}
		for i := range 400 {
			many = append(many, fmt.Sprint("a.p", i), "1")
		}
		packet = startupPacket(many...)
	case 2:
		packet = []byte{0x7f, 0xff, 0xff, 0xff, 0, 3, 0, 0}
	case 3:
		packet = make([]byte, 9999)
		_, _ = rand.Read(packet)
		copy(packet, []byte{0, 0, 0x27, 0x0f, 0, 3, 0, 0})
	}
	return send(ctx, n, pick(a.Clients, n), packet, 10*time.Second)
}

// abuseLogin begins a login under a name of its own, and never ends it.
func abuseLogin(ctx context.Context, a attack, n int) error {
	return send(ctx, n, pick(a.Clients, n), startupPacket("user", fmt.Sprint("stranger", n), "database", "postgres"), 35*time.Second)
}

func abuseCancel(ctx context.Context, a attack, n int) error {
	packet := append([]byte{0, 0, 0, 16, 4, 210, 22, 46}, make([]byte, 8)...)
	_, _ = rand.Read(packet[8:])
	return send(ctx, n, pick(a.Clients, n), packet, 10*time.Second)
}

func abuseJoin(ctx context.Context, a attack, n int) error {
	c, err := from(ctx, n, "tcp", pick(a.Endpoints, n))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	t, err := handshake(ctx, c, "coterie-join/1")
	if err != nil {
		return err
	}
	_ = t.SetDeadline(time.Now().Add(10 * time.Second))
	text := fmt.Appendf(nil, `{"token_id":"%032x","proof":"AAAA","request":"e30="}`, n)
	if _, err := t.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, t)
	return err
}

func abuseDatagrams(ctx context.Context, a attack, n int) error {
	c, err := from(ctx, n, "udp", pick(a.Endpoints, n))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	initial := make([]byte, 1200) // looks like the first datagram of a QUIC connection
	for range 100 {
		_, _ = rand.Read(initial)
		copy(initial, []byte{0xc3, 0, 0, 0, 1, 8})
		if _, err := c.Write(initial); err != nil {
			return err
		}
	}
	return nil
}

var bombs = []string{
	"WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM r) SELECT count(*) FROM r",
	"WITH RECURSIVE r(n, t) AS (SELECT 1, 'x' UNION ALL SELECT n+1, t||t FROM r) SELECT * FROM r ORDER BY t",
	"SELECT count(*) FROM coterie.options a, coterie.options b, coterie.options c, coterie.options d",
	"SELECT " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000),
	"SELECT '" + strings.Repeat("x", 200<<10) + "' LIKE '" + strings.Repeat("%x", 20<<10) + "'",
}

func abuseConsole(ctx context.Context, a attack, n int) error {
	cfg, err := pgx.ParseConfig(a.Viewer[n%len(a.Viewer)])
	if err != nil {
		return err
	}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		return from(ctx, n, network, address)
	}
	c, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	for i := range bombs {
		_, _ = c.Exec(ctx, bombs[(n+i)%len(bombs)])
	}
	return nil
}

// start starts the attackers. end ends them, and returns how often they tried.
func (a attack) start(t *testing.T) (end func() string) {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The lowest priority: in reality the group shares no processor with its attackers.
	cmd := exec.CommandContext(t.Context(), "nice", "-n", "19", self)
	cmd.Env = append(os.Environ(), attackers+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return sync.OnceValue(func() string {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the attackers: %v: %s", err, said.String())
		}
		return out.String()
	})
}
