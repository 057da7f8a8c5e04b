package outage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/retry"
	"github.com/coteriedb/coterie/internal/measure/goals"
)

// Relay is a process that copies the bytes of connections to another address.
type Relay interface {
	Port() int // port of 127.0.0.1 at which it accepts
	Close() error
}

// The cost of the group is measured in commits per second. Each client sends its next commit when the last one was
// acknowledged.
const (
	costClients = 8
	costWarmUp  = 2 * time.Second
	costFor     = 10 * time.Second
)

// CostRound has the commits per second with one synchronous secondary, of four runs in turn on one machine. The first
// is plain PostgreSQL. In the second, its clients and its replication go through processes that only copy bytes, one
// for each agent of the group. The third is the group's primary directly, the fourth through its listener.
type CostRound struct {
	Plain    float64 `json:"plain"`
	Relayed  float64 `json:"relayed"`
	Private  float64 `json:"past_the_listener"`
	Listener float64 `json:"listener"`
}

// cost compares two replicas and a witness with a plain primary and its secondary.
func (m *measurement) cost(ctx context.Context, s *Samples) (err error) {
	if !m.wants(ArmCost) || m.Runs == 0 {
		return nil
	}
	m.Screen.Busy("a plain primary and its secondary")
	p, err := newPlainPair(ctx, m.Relay)
	if err != nil {
		return fmt.Errorf("plain PostgreSQL: %w", err)
	}
	defer func() { err = errors.Join(err, p.close()) }()
	st, err := observe.Primary(ctx, m.lab)
	if err != nil {
		return err
	}
	node := string(st.Node)
	listener, err := m.ownListener(node)
	if err != nil {
		return err
	}
	private, err := pgx.ParseConfig(m.lab.DSN(node))
	if err != nil {
		return err
	}
	for i := range m.Runs {
		var r CostRound
		for _, arm := range []struct {
			name string
			to   *float64
			at   func(context.Context) (*pgx.ConnConfig, error)
		}{
			{"plain", &r.Plain, p.direct},
			{"relayed", &r.Relayed, p.relayed},
			{"past the listener", &r.Private, func(context.Context) (*pgx.ConnConfig, error) { return private, nil }},
			{"listener", &r.Listener, func(context.Context) (*pgx.ConnConfig, error) { return listener, nil }},
		} {
			m.Screen.Busy("run %d of %d: %d clients, %s", i+1, m.Runs, costClients, arm.name)
			c, err := arm.at(ctx)
			if err == nil {
				*arm.to, err = commits(ctx, c)
			}
			if err != nil {
				return fmt.Errorf("run %d, %s: %w", i+1, arm.name, err)
			}
		}
		s.Cost = append(s.Cost, r)
		m.Screen.Say("run %d/%d: commits/s of %d clients: plain %.0f, through copying relays %.0f (%.1f %% less), ours past the listener %.0f, ours %.0f (%.1f %% less than relayed)",
			i+1, m.Runs, costClients, r.Plain, r.Relayed, less(r.Relayed, r.Plain), r.Private, r.Listener, less(r.Listener, r.Relayed))
	}
	return nil
}

// less returns by how many percent v is less than the other value.
func less(v, than float64) float64 { return 100 * (1 - v/than) }

// costFigures returns the cost of the relays, and the cost of the group beyond it.
func (s Samples) costFigures(why string) []goals.Figure {
	var relay, beyond []float64
	for _, r := range s.Cost {
		relay, beyond = append(relay, less(r.Relayed, r.Plain)), append(beyond, less(r.Listener, r.Relayed))
	}
	return []goals.Figure{median("cost-of-a-relay", relay, why), median("cost-beyond-a-relay", beyond, why)}
}

// ownListener returns the configuration for the listener of that node. It is without TLS, as the relays are.
func (m *measurement) ownListener(node string) (*pgx.ConnConfig, error) {
	c, err := pgx.ParseConfig(m.lab.ReadWrite())
	if err != nil {
		return nil, err
	}
	at := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks {
		if a := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(at, a) {
			at = append(at, a)
		}
	}
	i := slices.Index(m.lab.Nodes(), node)
	if i < 0 || i >= len(at) {
		return nil, fmt.Errorf("the listener of %s is not among %v", node, at)
	}
	host, port, err := net.SplitHostPort(at[i])
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	c.Host, c.Port, c.TLSConfig, c.Fallbacks = host, uint16(n), nil, nil
	return c, err
}

// commits returns the rows committed per second, one per transaction.
func commits(ctx context.Context, c *pgx.ConnConfig) (perSecond float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, costWarmUp+costFor+30*time.Second)
	defer cancel()
	setup, err := pgx.ConnectConfig(ctx, c.Copy())
	if err != nil {
		return 0, err
	}
	_, err = setup.Exec(ctx, "CREATE TABLE IF NOT EXISTS public.cost (client int, pad text); TRUNCATE public.cost")
	if err = errors.Join(err, setup.Close(ctx)); err != nil {
		return 0, err
	}
	var n atomic.Int64
	var ends atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, costClients)
	for client := range costClients {
		wg.Go(func() { failed <- insertUntil(ctx, c, client, &n, &ends) })
	}
	err = retry.Sleep(ctx, costWarmUp)
	before, began := n.Load(), time.Now()
	err = errors.Join(err, retry.Sleep(ctx, costFor))
	perSecond = float64(n.Load()-before) / time.Since(began).Seconds()
	ends.Store(true)
	wg.Wait()
	for range costClients {
		err = errors.Join(err, <-failed)
	}
	return perSecond, err
}

func insertUntil(ctx context.Context, c *pgx.ConnConfig, client int, n *atomic.Int64, ends *atomic.Bool) error {
	conn, err := pgx.ConnectConfig(ctx, c.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for !ends.Load() {
		if _, err := conn.Exec(ctx, "INSERT INTO public.cost VALUES ($1, $2)", client, "a hundred bytes, more or less, as a small row of an ordinary application may have them, or not"); err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}

// plainPair is a PostgreSQL primary and its synchronous secondary. The settings that matter for the comparison are
// those of a group.
type plainPair struct {
	primary, secondary *pgtest.Server
	relay, far         Relay // relay of the primary's node, for clients and for the secondary; relay of the secondary's node
}

func newPlainPair(ctx context.Context, relay func(ctx context.Context, to string) (Relay, error)) (p *plainPair, err error) {
	p = &plainPair{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	durable := []string{"fsync=on", "full_page_writes=on", "synchronous_commit=on", "wal_retrieve_retry_interval=100ms"}
	if p.primary, err = pgtest.NewWith(pgtest.Options{Settings: append(slices.Clone(durable), "synchronous_standby_names=*")}); err != nil {
		return p, err
	}
	if p.secondary, err = p.primary.ReplicaWith(pgtest.Options{Settings: durable}); err != nil {
		return p, err
	}
	if p.relay, err = relay(ctx, filepath.Join(p.primary.Dir(), ".s.PGSQL.5432")); err != nil {
		return p, err
	}
	p.far, err = relay(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(p.relay.Port())))
	return p, err
}

func (p *plainPair) close() (err error) {
	if p.secondary != nil {
		err = errors.Join(err, p.secondary.Remove())
	}
	if p.primary != nil {
		err = errors.Join(err, p.primary.Remove())
	}
	for _, r := range []Relay{p.far, p.relay} {
		if r != nil {
			err = errors.Join(err, r.Close())
		}
	}
	return err
}

func (p *plainPair) direct(ctx context.Context) (*pgx.ConnConfig, error) {
	if err := p.follow(ctx, p.primary.Dir(), 5432); err != nil {
		return nil, err
	}
	return pgx.ParseConfig(p.primary.DSN())
}

func (p *plainPair) relayed(ctx context.Context) (*pgx.ConnConfig, error) {
	if err := p.follow(ctx, "127.0.0.1", p.far.Port()); err != nil {
		return nil, err
	}
	return pgx.ParseConfig(fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", p.relay.Port()))
}

// follow makes the secondary stream from that address, and returns when it does.
func (p *plainPair) follow(ctx context.Context, host string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, p.secondary.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	set := fmt.Sprintf("ALTER SYSTEM SET primary_conninfo = 'host=%s port=%d user=postgres sslmode=disable'", host, port) // of this program's making
	for _, sql := range []string{set, "SELECT pg_reload_conf()"} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return observe.Await(ctx, time.Minute, "the plain secondary to stream", func(ctx context.Context) (bool, error) {
		var ok bool
		err := c.QueryRow(ctx, "SELECT count(*) = 1 FROM pg_stat_wal_receiver WHERE status = 'streaming' AND sender_host = $1", host).Scan(&ok)
		return ok, err
	})
}

// Forwarder is a relay that copies bytes. It writes each read before the next one, like any relay in user space.
type Forwarder struct {
	in    net.Listener
	to    string
	done  chan struct{}
	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil once closed
	wg    sync.WaitGroup
}

// NewForwarder starts a forwarder to a TCP address or to the path of a Unix socket.
func NewForwarder(to string) (*Forwarder, error) {
	in, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // close ends it
	if err != nil {
		return nil, err
	}
	c := &Forwarder{in: in, to: to, done: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	go c.accept()
	return c, nil
}

// Port returns the port at which it accepts.
func (c *Forwarder) Port() int { return c.in.Addr().(*net.TCPAddr).Port }

func (c *Forwarder) accept() {
	defer close(c.done)
	for {
		client, err := c.in.Accept()
		if err != nil {
			return
		}
		network := "tcp"
		if filepath.IsAbs(c.to) {
			network = "unix"
		}
		server, err := net.DialTimeout(network, c.to, 5*time.Second) //nolint:noctx // bounded
		if err != nil || !c.keep(client, server) {
			_ = client.Close()
			continue
		}
		c.wg.Go(func() { c.pass(client, server) })
		c.wg.Go(func() { c.pass(server, client) })
	}
}

// keep registers a pair of connections, so that Close ends it. It returns false once the forwarder is closed.
func (c *Forwarder) keep(client, server net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns == nil {
		_ = server.Close()
		return false
	}
	c.conns[client], c.conns[server] = struct{}{}, struct{}{}
	return true
}

// pass copies through a buffer. Without the wrappers the kernel would copy, which a relay that inspects its data cannot
// use.
func (c *Forwarder) pass(to, from net.Conn) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, 32<<10))
	_, _ = to.Close(), from.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, to)
	delete(c.conns, from)
}

// Close ends the connections, and returns when they have ended.
func (c *Forwarder) Close() error {
	err := c.in.Close()
	<-c.done
	c.mu.Lock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	c.mu.Unlock()
	c.wg.Wait()
	return err
}
