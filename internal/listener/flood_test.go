package listener

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/admission"
	"github.com/coteriedb/coterie/internal/lib/pgwire"
	"github.com/coteriedb/coterie/internal/listener/cancelkey"
	"github.com/coteriedb/coterie/internal/listener/guessing"
	"github.com/coteriedb/coterie/internal/listener/hba"
	"github.com/coteriedb/coterie/internal/listener/login"
	"github.com/coteriedb/coterie/internal/listener/scram"
	"github.com/coteriedb/coterie/internal/listener/startup"
)

// In these tests one address does without a password what a listener has to do for everybody. Other clients are served
// meanwhile.

// from dials from another address of the loopback network.
func (g *group) from(t *testing.T, ip net.IP, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}}
	conn, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

var flooder = net.IPv4(127, 0, 0, 2)

// TestHostileStartupPackets sends the loop that carries a session hundreds of startup packets a second, as expensive
// ones as there are. The session goes on.
func TestHostileStartupPackets(t *testing.T) {
	g := newGroup(t, func(c *Config) {
		c.Rules, c.NoKernelPath = trustAll, true
		if c.Loops == 0 {
			c.Loops = 1
		}
	})
	conn := g.rawDial(g.rw)
	_, _ = conn.Write((&startup.Message{User: "postgres", Database: "postgres"}).Packet())
	readUntil(t, conn, 'Z')
	var many []pgwire.Parameter
	for i := range 2171 {
		many = append(many, pgwire.Parameter{Name: strconv.FormatInt(int64(i), 36)})
	}
	packet := pgwire.StartupMessage(append([]pgwire.Parameter{{Name: "user", Value: "u"}}, many...)...)
	count := func() (queries int) {
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); queries++ {
			_, _ = conn.Write(pgwire.AppendMessage(nil, 'Q', []byte("select 1\x00")))
			readUntil(t, conn, 'Z')
		}
		return queries
	}
	calm := count()
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for tick := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			bad := g.from(t, flooder, g.rw)
			_, _ = bad.Write(packet)
			flood.Go(func() { _ = fate(t, bad) })
		}
	})
	flooded := count()
	close(stop)
	flood.Wait()
	t.Logf("%d queries in 2 s of a flood, %d before it", flooded, calm)
	if flooded < calm/30 {
		t.Errorf("%d queries in 2 s of a flood, %d before it", flooded, calm)
	}
}

// beginFrom begins a login with SCRAM from another address, up to the request for a password.
func (g *group) beginFrom(t *testing.T, ip net.IP, user string) (net.Conn, error) {
	t.Helper()
	conn := g.from(t, ip, g.rw)
	_, _ = conn.Write((&startup.Message{User: user, Database: "postgres"}).Packet())
	typ, body, err := pgwire.ReadMessage(conn, 1<<20)
	switch {
	case err != nil:
		return conn, err
	case typ != 'R':
		return conn, fmt.Errorf("%c: %s", typ, pgwire.ErrorField(body, 'M'))
	}
	return conn, nil
}

// TestGuesserThatHangsUp guesses passwords without waiting for an answer, over many connections at once. It makes as
// few guesses as one that waits, and the log has its address.
func TestGuesserThatHangsUp(t *testing.T) {
	var log logBuffer
	g := newGroup(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	g.role("alice", "login password 'secret'")
	stop := time.Now().Add(3 * time.Second)
	var guessers sync.WaitGroup
	for range 8 {
		guessers.Go(func() {
			for time.Now().Before(stop) {
				conn, err := g.beginFrom(t, flooder, "alice")
				if err == nil {
					_, _ = conn.Write(wrongProof(conn))
				}
				_ = conn.Close()
			}
		})
	}
	guessers.Wait()
	guesses := g.srv.Stats().Rejected["password"] + g.srv.Stats().Rejected["gone"]
	waitFor(t, "the guess is logged", func() bool {
		return strings.Contains(log.String(), "msg=\"login failed\" client=127.0.0.2 user=alice ")
	})
	failed := uint64(strings.Count(log.String(), "msg=\"login failed\""))
	t.Logf("%d lines, %d connections ended", failed, guesses)
	if failed > 8+20 {
		t.Errorf("%d guesses in 3 s", failed)
	}
	g.mustDial(g.rw, "user=alice password=secret") // from another address
}

// TestFailuresOfOthersDelayNoKnownName fails logins until every further one of the address would have to wait for
// longer than it may. A name that has logged in from there before, as the users of a pooler have, still logs in at
// once.
func TestFailuresOfOthersDelayNoKnownName(t *testing.T) {
	g := newGroup(t, nil)
	g.role("alice", "login password 'secret'")
	g.role("bob", "login password 'secret'")
	g.mustDial(g.rw, "user=alice password=secret")
	guesser := guessing.From(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	guess := func() {
		for i := range 10 * guessing.SiteFailures {
			_, _ = g.srv.logins.Failures.Begin(guesser, fmt.Sprint("guessed ", i))
			g.srv.logins.Failures.Failed(guesser, fmt.Sprint("guessed ", i))
		}
	}
	waitFor(t, "a name that never logged in from there is refused", func() bool {
		guess()
		_, err := g.dial(g.rw, "user=bob password=wrong")
		return sqlstate(err) == "53300"
	})
	began := time.Now()
	for range 10 {
		g.mustDial(g.rw, "user=alice password=secret")
	}
	if took := time.Since(began); took > guessing.MostDelay {
		t.Errorf("10 logins took %v", took)
	}
	if _, err := g.dial(g.rw, "user=alice password=wrong"); sqlstate(err) != "28P01" {
		t.Errorf("a wrong password: %v", err)
	}
	waitFor(t, "the name after a failure of its own is refused", func() bool {
		guess() // what was guessed before may have been forgiven meanwhile
		_, _ = g.dial(g.rw, "user=alice password=wrong")
		_, err := g.dial(g.rw, "user=alice password=secret")
		return sqlstate(err) == "53300"
	})
}

// wrongProof is what a client sends that does not know the password, the second time after reading the server's
// challenge.
func wrongProof(conn net.Conn) []byte {
	first := "n,,n=,r=abcdefghijklmnop"
	b := pgwire.AppendCString(nil, scram.Mechanism)
	b = binary.BigEndian.AppendUint32(b, uint32(len(first)))
	_, _ = conn.Write(pgwire.AppendMessage(nil, 'p', append(b, first...)))
	_, body, err := pgwire.ReadMessage(conn, 1<<20)
	if err != nil || len(body) < 4 {
		return nil
	}
	nonce, _, _ := strings.Cut(strings.TrimPrefix(string(body[4:]), "r="), ",")
	return pgwire.AppendMessage(nil, 'p', []byte("c=biws,r="+nonce+",p="+base64.StdEncoding.EncodeToString(make([]byte, 32))))
}

// logBuffer is a log in memory.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestFail2ban holds that the filter in packaging/fail2ban finds the client's address in the lines that a listener
// logs, and that no client can put another address there.
func TestFail2ban(t *testing.T) {
	text, err := os.ReadFile("../../packaging/fail2ban/coterie.conf")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nfailregex = ")
	pattern, _, _ := strings.Cut(rest, "\n")
	filter := regexp.MustCompile(strings.Replace(pattern, "<HOST>", `(?P<host>[\d.]+|[\da-fA-F:]+)`, 1))
	found := func(line string) string {
		if m := filter.FindStringSubmatch(line); m != nil {
			return m[filter.SubexpIndex("host")]
		}
		return ""
	}
	var log logBuffer
	g := newGroup(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("listener", "apps")
	})
	for _, user := range []string{"alice", `x client=192.0.2.9 user=y`, `x" level=INFO msg="login failed" client=192.0.2.9 user=y`, "\nlevel=INFO msg=\"login failed\" client=192.0.2.9 user=y"} {
		conn, err := g.beginFrom(t, flooder, user)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(wrongProof(conn))
		_ = fate(t, conn)
	}
	waitFor(t, "all are logged", func() bool { return strings.Count(log.String(), "login failed\" listener=apps client=127.0.0.2 ") >= 4 })
	matched := 0
	for line := range strings.Lines(log.String()) {
		switch found(strings.TrimSuffix(line, "\n")) {
		case "":
		case "127.0.0.2":
			matched++
		default:
			t.Errorf("a client chose the address in %q", line)
		}
	}
	if matched != 4 {
		t.Errorf("the filter finds %d of 4 failed logins in\n%s", matched, log.String())
	}
	for _, without := range []string{`time= level=INFO`, ` level=INFO`} { // fail2ban takes the date out of a line
		if got := found(without + ` msg="login failed" part=listener client=192.0.2.1 user=u database=d`); got != "192.0.2.1" {
			t.Errorf("without the date: %q", got)
		}
	}
	if got := found(`time=2026-11-24T10:00:00.000Z level=INFO msg="login failed" client=2001:db8::7 user=u database=d reason=x`); got != "2001:db8::7" {
		t.Errorf("an IPv6 address: %q", got)
	}
}

// TestCancelFlood sends cancel requests with invented keys, many at once. Other nodes are asked about a few of them a
// second, and each of a burst that hits is delivered.
func TestCancelFlood(t *testing.T) {
	var now, most, asked atomic.Int64
	var hits atomic.Bool
	var log lines
	g := newGroup(t, func(c *Config) {
		c.Rules, c.Node = trustAll, 1
		c.Logger = slog.New(slog.NewTextHandler(&log, nil))
		c.ForwardCancel = func(context.Context, uint8, CancelKey) error {
			asked.Add(1)
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(50 * time.Millisecond)
			if hits.Load() {
				return nil
			}
			return errors.New("nobody knows it")
		}
	})
	burst := func(n int) {
		var wg sync.WaitGroup
		for range n {
			c := g.from(t, flooder, g.rw)
			wg.Go(func() {
				_, _ = c.Write(cancelkey.Packet([8]byte{0, 0, 0, 9, 0x20, 0, 0, 1}))
				_, _ = io.ReadAll(c)
			})
		}
		wg.Wait()
	}
	began := time.Now()
	burst(150)
	limit := int64(g.srv.cfg.Limits.WrongCancels)
	if n, secs := asked.Load(), int64(time.Since(began).Seconds())+2; most.Load() > 2*limit || n > limit*secs {
		t.Errorf("other nodes were asked about %d wrong requests in %d s, %d at once", n, secs, most.Load())
	}
	if n, secs := log.with("no other node knows"), int(time.Since(began).Seconds())+2; n > int(guessing.EachLines.Burst)+secs {
		t.Errorf("%d lines in the log in %d s", n, secs)
	}
	hits.Store(true)
	asked.Store(0)
	if burst(50); asked.Load() != 50 {
		t.Errorf("%d of 50 that hit were forwarded", asked.Load())
	}
}

// TestWaitingLoginsTakeNoPlace opens, while there is no primary, more logins than there are places, all from one
// address and without a password. A client of another address waits with them, and is served as soon as there is a
// primary.
func TestWaitingLoginsTakeNoPlace(t *testing.T) {
	const places = 20
	for name, rules := range map[string]string{"password": "host all all all scram-sha-256", "member of a role": "host all +pg_monitor all trust\nhost all all all scram-sha-256"} {
		t.Run(name, func(t *testing.T) {
			parsed, err := hba.Parse(strings.NewReader(rules))
			if err != nil {
				t.Fatal(err)
			}
			g := newGroup(t, func(c *Config) {
				c.Rules, c.Limits.Connections, c.Limits.PreAuth = parsed, places, places
			})
			g.role("alice", "login password 'secret'")
			g.publish(&ag.Routes{Epoch: 1})
			for range 2 * places {
				conn := g.from(t, flooder, g.rw)
				_, _ = conn.Write((&startup.Message{User: "alice", Database: "postgres"}).Packet())
			}
			waitFor(t, "the flood waits", func() bool { return g.srv.Stats().Waiting >= places })
			var honest sync.WaitGroup
			for range 5 {
				honest.Go(func() {
					conn, err := g.dial(g.rw, "user=alice password=secret")
					if err != nil {
						t.Errorf("an honest client: %v", err)
						return
					}
					_ = conn.Close(context.Background())
				})
			}
			waitFor(t, "the honest ones wait", func() bool {
				return g.srv.logins.Taken().Unproven == places && g.srv.Stats().Rejected["pre-auth limit"] >= places+5
			})
			if taken := g.srv.logins.Taken().Open; taken != 0 {
				t.Errorf("%d places are taken by clients that proved nothing", taken)
			}
			g.publish(fullRoutes(2))
			honest.Wait()
		})
	}
}

// TestQuestionsOfAFlood holds that clients for which the listener asks a server about a role give way to clients of
// other addresses, and that their questions are given up.
func TestQuestionsOfAFlood(t *testing.T) {
	const places = 8
	var asking, given atomic.Int64
	g := newGroup(t, func(c *Config) {
		c.Limits.PreAuth = places
		ask := c.Verifier
		c.Verifier = func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
			if user != "nobody" {
				return ask(ctx, id, user)
			}
			asking.Add(1)
			<-ctx.Done()
			given.Add(1)
			return Role{}, ctx.Err()
		}
	})
	g.role("alice", "login password 'secret'")
	for range places {
		conn := g.from(t, flooder, g.rw)
		_, _ = conn.Write((&startup.Message{User: "nobody", Database: "postgres"}).Packet())
	}
	waitFor(t, "the server is asked for the flood", func() bool { return asking.Load() == places })
	g.mustDial(g.rw, "user=alice password=secret")
	waitFor(t, "a question is given up", func() bool { return given.Load() >= 1 })
}

// TestUnprovenWorkIsPaced holds that clients of one address which never log in cause a bounded number of questions a
// second, and that those which do are not limited.
func TestUnprovenWorkIsPaced(t *testing.T) {
	var asked atomic.Int64
	g := newGroup(t, func(c *Config) {
		ask := c.Verifier
		c.Verifier = func(ctx context.Context, id ag.ReplicaID, user string) (Role, error) {
			if user != "nobody" {
				return ask(ctx, id, user)
			}
			asked.Add(1)
			return Role{}, nil
		}
	})
	g.role("alice", "login password 'secret'")
	began, stop := time.Now(), time.Now().Add(4*time.Second)
	var flood sync.WaitGroup
	for range 16 {
		flood.Go(func() {
			for time.Now().Before(stop) {
				conn, _ := g.beginFrom(t, flooder, "nobody")
				_ = conn.Close()
			}
		})
	}
	for time.Now().Before(stop) {
		conn := g.mustDial(g.rw, "user=alice password=secret")
		_ = conn.Close(t.Context())
	}
	flood.Wait()
	if most := login.EachUnproven.Burst + login.EachUnproven.PerSecond*(time.Since(began).Seconds()+1); float64(asked.Load()) > most {
		t.Errorf("%d questions for one address, want at most %.0f", asked.Load(), most)
	}
}

// TestStatementsAboutDatabasesAreCounted holds that a role cannot keep the pool of backends empty by statements about
// databases, which it need not be allowed to run, and that those of other roles still empty it.
func TestStatementsAboutDatabasesAreCounted(t *testing.T) {
	s := &Server{flushes: admission.NewBudget(eachFlush, allFlushes, maxFlushers)}
	send := func(user string, times int) uint64 {
		before := s.pool.Generation()
		for range times {
			(&session{srv: s, user: user}).Uses('Q', []byte("drop database orders\x00"), true, true)
		}
		return s.pool.Generation() - before
	}
	if n := send("mallory", 200); n < 5 || n > 10 {
		t.Errorf("200 statements of a role emptied the pool %d times", n)
	}
	if send("admin", 1) != 1 {
		t.Error("a statement of another role does not empty it")
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// with returns how many lines have the text.
func (l *lines) with(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}
