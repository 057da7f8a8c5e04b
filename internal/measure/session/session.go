package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Bounds of one client's patience.
const (
	DefaultTimeout = 5 * time.Second // of an operation
	perHost        = 2 * time.Second // of one attempt to connect to one host
	firstPause     = 10 * time.Millisecond
	longestPause   = 250 * time.Millisecond // short, so that the outage measured is the server's and not the client's
)

// Options describes where a Session connects.
type Options struct {
	DSN     string          // libpq URI or keyword string; several hosts are tried in turn
	Start   int             // index of the host to begin with, modulo their number: clients spread themselves with it
	Timeout time.Duration   // of one operation; default DefaultTimeout
	PerHost time.Duration   // of one attempt to connect to one host; default 2 s
	Name    string          // application_name, unless the DSN sets one
	Dial    pgconn.DialFunc // where connections are made from; default: here
}

// Session is one client. It is not safe for concurrent use.
type Session struct {
	hosts    []*pgx.ConnConfig
	next     int // index of the host to try next
	at       int // index of the host connected to
	timeout  time.Duration
	conn     *pgx.Conn
	wire     *wire
	watch    *watch
	connects int
}

// New reads o; it does not connect.
func New(o Options) (*Session, error) {
	hosts, err := split(o.DSN, o.Name, cmp.Or(o.PerHost, perHost))
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		if o.Dial != nil {
			h.DialFunc = o.Dial
		}
	}
	s := &Session{hosts: hosts, next: o.Start % len(hosts), timeout: o.Timeout}
	if s.timeout <= 0 {
		s.timeout = DefaultTimeout
	}
	return s, nil
}

// split makes one configuration per host, keeping the TLS alternatives of each.
func split(dsn, name string, perHost time.Duration) ([]*pgx.ConnConfig, error) {
	all, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("read connection string: %w", err)
	}
	if all.RuntimeParams["application_name"] == "" && name != "" {
		all.RuntimeParams["application_name"] = name
	}
	if all.ConnectTimeout <= 0 || all.ConnectTimeout > perHost {
		all.ConnectTimeout = perHost
	}
	tries := append([]*pgconn.FallbackConfig{{Host: all.Host, Port: all.Port, TLSConfig: all.TLSConfig}}, all.Fallbacks...)
	var hosts []*pgx.ConnConfig
	for _, t := range tries {
		if n := len(hosts); n > 0 && hosts[n-1].Host == t.Host && hosts[n-1].Port == t.Port {
			hosts[n-1].Fallbacks = append(hosts[n-1].Fallbacks, t)
			continue
		}
		one := all.Copy()
		one.Host, one.Port, one.TLSConfig, one.Fallbacks = t.Host, t.Port, t.TLSConfig, nil
		hosts = append(hosts, one)
	}
	return hosts, nil
}

// Conn returns the connection, or nil.
func (s *Session) Conn() *pgx.Conn { return s.conn }

// Connects returns how many connections were made so far.
func (s *Session) Connects() int { return s.connects }

// Host returns the address of the host that the session is, or was last, connected to.
func (s *Session) Host() string {
	c := s.hosts[s.at]
	if strings.HasPrefix(c.Host, "/") {
		return c.Host
	}
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// Connect connects to the first host that accepts the client, until ctx ends. It returns an error only if every host
// gives an answer that waiting cannot change (a wrong password, a database that does not exist), and only while the
// session never had a connection.
func (s *Session) Connect(ctx context.Context) error {
	pause := firstPause
	for {
		var last error
		vain := s.connects == 0
		for range s.hosts {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := s.dial(ctx)
			if err == nil {
				return nil
			}
			vain = vain && hopeless(err)
			last = err
		}
		if vain {
			return last
		}
		if err := sleep(ctx, jitter(pause)); err != nil {
			return fmt.Errorf("%w; last answer: %w", err, last)
		}
		pause = min(2*pause, longestPause)
	}
}

func (s *Session) dial(ctx context.Context) error {
	i := s.next
	s.next = (i + 1) % len(s.hosts) // this host has had its turn, with any result
	cfg := s.hosts[i].Copy()
	w := &wire{dial: cfg.DialFunc}
	cfg.DialFunc = w.open
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	w.taken.Store(true)
	s.at, s.conn, s.wire, s.watch = i, conn, w, newWatch(s.timeout, w.expire)
	s.connects++
	return nil
}

// hopeless tells the answers that an operator must act upon.
func hopeless(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000" || pg.Code == "42501"
}

// Do runs op with the session's deadline and returns its outcome. op must be one transaction. The deadline applies to
// the waits of op on the connection; the context that op gets has none. The end of ctx does not cut op short: that
// would only turn an answer under way into a doubt. After any doubt the connection is given up; the caller calls
// Connect again.
func (s *Session) Do(ctx context.Context, op func(context.Context, *pgx.Conn) error) (Outcome, string, error) {
	if s.conn == nil {
		return Fail, "not-sent", errors.New("no connection")
	}
	s.watch.begin()
	err := op(context.WithoutCancel(ctx), s.conn)
	inTime := s.watch.end()
	outcome, state := Classify(err)
	// A server that has become read-only keeps answering; the primary is elsewhere.
	if outcome == Unknown || !inTime || s.conn.IsClosed() || state == "25006" {
		s.Drop()
	}
	return outcome, state, err
}

// Drop gives the connection up without a word to the server.
func (s *Session) Drop() {
	if s.conn == nil {
		return
	}
	s.watch.stop()
	s.wire.cut()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // releases pgx's own state; the wire is cut already
	select {
	case <-s.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
	s.conn, s.wire = nil, nil
}

// Close ends the session politely.
func (s *Session) Close() {
	if s.conn == nil {
		return
	}
	s.watch.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx)
	s.wire.cut()
	s.conn, s.wire = nil, nil
}

// wire is the socket under a connection. It does not dial again once a connection is made. pgx would dial to send a
// cancel request for a statement whose time is up, and that would change the measured outcome.
type wire struct {
	dial  pgconn.DialFunc
	taken atomic.Bool
	conn  net.Conn // the last one dialled; written before taken is set
}

var errNoCancel = errors.New("cancel requests are not sent")

func (w *wire) open(ctx context.Context, network, addr string) (net.Conn, error) {
	if w.taken.Load() {
		return nil, errNoCancel
	}
	c, err := w.dial(ctx, network, addr)
	w.conn = c
	return c, err
}

func (w *wire) cut() {
	if w.conn != nil {
		_ = w.conn.Close()
	}
}

// expire ends every wait for the server, as its time is up.
func (w *wire) expire() { _ = w.conn.SetDeadline(time.Unix(1, 0)) }

func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d) //nolint:gosec // spreads clients, guards nothing
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// openFor bounds how long Open looks for a server: longer than any failover should take.
const openFor = time.Minute

// Open returns a bare connection to the first host that lets it in. Its operations have no deadline but that of ctx.
func Open(ctx context.Context, dsn, name string) (*pgx.Conn, error) {
	s, err := New(Options{DSN: dsn, Name: name})
	if err != nil {
		return nil, err
	}
	cctx, cancel := context.WithTimeoutCause(ctx, openFor, fmt.Errorf("no server let us in for %v", openFor))
	defer cancel()
	if err := s.Connect(cctx); err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	s.watch.stop()
	return s.conn, nil
}

// Pause waits for a moment of the kind that separates two attempts, or until ctx ends.
func Pause(ctx context.Context) { _ = sleep(ctx, jitter(2*firstPause)) }
