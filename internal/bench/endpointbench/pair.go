package endpointbench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/vishvananda/netlink"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lab/pgtest"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/measure/method"
)

// Site is where a node of a measurement runs: in a network namespace or on this host.
type Site struct {
	In   func(func() error) error
	Addr netip.Addr
	Port int // port of its server
	End  int // port of its endpoint
}

// Pair is a primary and a secondary at two sites, and the ways to join them.
type Pair struct {
	dir        string
	near, far  Site // sites of the primary and of the secondary
	Primary    *pgtest.Server
	secondary  *pgtest.Server
	admin      *pgx.Conn // on the primary
	ends       []*benchEnd
	tunnels    []func() // stop the processes that forward
	log        *os.File
	controlled string // congestion controller of the route, "" for the system's
}

// arm is one way to replicate.
type arm struct {
	name       string
	congestion string             // plain TCP with this congestion controller by route
	options    *ag.ReplicaOptions // our link with these options; nil: not our link
	cubic      bool               // our link without BBR
	ssh        bool               // through a port that ssh forwards
	local      bool               // no commit waits for the secondary
}

var (
	// WayCubic is plain TCP with the congestion controller cubic, as Linux has it by default.
	WayCubic = arm{name: "plain TCP cubic", congestion: "cubic"}
	wayBBR   = arm{name: "plain TCP BBR by route", congestion: "bbr"}
	wayOurs  = arm{name: "ours", options: &ag.ReplicaOptions{}}

	wayStriped = arm{name: "ours, without BBR", options: &ag.ReplicaOptions{}, cubic: true}
	wayNoUDP   = arm{name: "ours, without BBR and UDP", options: &ag.ReplicaOptions{Transport: string(link.PreferTCP)}, cubic: true}
)

// NewPair makes the two servers with further settings, each "name=value". They are not joined yet. The caller ends them
// with Close.
func NewPair(ctx context.Context, near, far Site, further ...string) (s *Pair, err error) {
	s = &Pair{near: near, far: far}
	if s.dir, err = os.MkdirTemp("/tmp", "ce"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(ctx))
		}
	}()
	if err := os.Chmod(s.dir, 0o755); err != nil { //nolint:gosec // for the servers' user
		return nil, err
	}
	if s.log, err = os.Create(filepath.Join(s.dir, "log")); err != nil {
		return nil, err
	}
	if err := benchPKI(s.dir); err != nil {
		return nil, err
	}
	up := filepath.Join(s.dir, "up")
	if err := errors.Join(os.Mkdir(up, 0o755), os.Chmod(up, 0o755)); err != nil { //nolint:gosec // the same
		return nil, err
	}
	settings := func(p Site) []string {
		return append([]string{
			"listen_addresses=" + p.Addr.String(), fmt.Sprintf("port=%d", p.Port), "wal_retrieve_retry_interval=100ms", "wal_sender_timeout=5min", "wal_receiver_timeout=5min",
		}, further...)
	}
	if s.Primary, err = pgtest.NewWith(pgtest.Options{In: near.In, Settings: settings(near), Port: near.Port, Trust: true}); err != nil {
		return nil, fmt.Errorf("primary: %w", err)
	}
	if s.secondary, err = s.Primary.ReplicaWith(pgtest.Options{In: far.In, Settings: settings(far), Port: far.Port}); err != nil {
		return nil, fmt.Errorf("secondary: %w", err)
	}
	// The link finds the server's socket by the port 5432, which servers have within a group.
	server := filepath.Join(s.dir, "server")
	err = errors.Join(os.Mkdir(server, 0o700), os.Symlink(filepath.Join(s.Primary.Dir(), fmt.Sprintf(".s.PGSQL.%d", near.Port)), filepath.Join(server, ".s.PGSQL.5432")))
	if err != nil {
		return nil, err
	}
	s.admin, err = pgx.Connect(ctx, s.Primary.DSN())
	return s, err
}

// Close ends both servers and everything that joins them, and removes their files.
func (s *Pair) Close(ctx context.Context) error {
	err := s.disconnect()
	if s.admin != nil {
		_ = s.admin.Close(ctx)
	}
	for _, server := range []*pgtest.Server{s.secondary, s.Primary} {
		if server != nil {
			err = errors.Join(err, server.Remove())
		}
	}
	return errors.Join(err, s.log.Close(), os.RemoveAll(s.dir))
}

// disconnect ends the processes of our link, and the tunnels.
func (s *Pair) disconnect() (err error) {
	for _, e := range s.ends {
		err = errors.Join(err, e.Stop())
	}
	s.ends = nil
	for _, end := range s.tunnels {
		end()
	}
	s.tunnels = nil
	return err
}

// Join makes the secondary stream by that arm, and makes commits wait for it unless the arm is local. It returns when
// the secondary has caught up.
func (s *Pair) Join(ctx context.Context, a arm) error {
	if err := s.disconnect(); err != nil {
		return err
	}
	host, port := s.near.Addr.String(), s.near.Port
	if a.options != nil {
		host, port = filepath.Join(s.dir, "up"), 5432
		if err := s.start(a); err != nil {
			return err
		}
	}
	if err := s.route(a.congestion); err != nil {
		return err
	}
	if a.ssh {
		host, port = "127.0.0.1", s.far.End
		if err := s.tunnel(ctx); err != nil {
			return err
		}
	}
	c, err := pgx.Connect(ctx, s.secondary.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(ctx) }()
	info := fmt.Sprintf("host=%s port=%d user=postgres application_name=cot_s_1", host, port)
	if _, err := c.Exec(ctx, "ALTER SYSTEM SET primary_conninfo = '"+info+"'"); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	// A walreceiver with the same address would keep its connection. It is ended, so that each run has a connection of
	// its own.
	if _, err := s.admin.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication"); err != nil {
		return err
	}
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	time.Sleep(300 * time.Millisecond)
	return s.settle(ctx)
}

// settle waits until the secondary has received all WAL.
func (s *Pair) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		var done bool
		err := s.admin.QueryRow(ctx, "SELECT coalesce(bool_or(sync_state <> 'async' AND flush_lsn >= pg_current_wal_flush_lsn()), false) FROM pg_stat_replication").Scan(&done)
		if done || err != nil {
			return err
		}
		if !method.Pause(ctx, 20*time.Millisecond) {
			return errors.New("the secondary does not catch up")
		}
	}
}

// route sets the congestion controller for the packets from the primary's site to the secondary's.
func (s *Pair) route(congestion string) error {
	if s.near.Addr == s.far.Addr || congestion == s.controlled {
		return nil
	}
	err := s.near.In(func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		routes, err := h.RouteGet(s.far.Addr.AsSlice())
		if err != nil || len(routes) == 0 {
			return errors.Join(errors.New("no route to the secondary"), err)
		}
		r := netlink.Route{LinkIndex: routes[0].LinkIndex, Dst: netlink.NewIPNet(s.far.Addr.AsSlice()), Scope: netlink.SCOPE_LINK, Congctl: congestion}
		if congestion == "" {
			return h.RouteDel(&r)
		}
		return h.RouteReplace(&r)
	})
	if err != nil {
		return fmt.Errorf("route with %s: %w", congestion, err)
	}
	s.controlled = congestion
	return nil
}

// start runs both ends of our link.
func (s *Pair) start(a arm) error {
	at := fmt.Sprintf("%s:%d", s.near.Addr, s.near.End)
	p, err := s.spawn(s.near, benchNode{
		PKI: filepath.Join(s.dir, "pki-p"), Listen: at, Socket: filepath.Join(s.dir, "server"), Primary: at, Options: *a.options, Cubic: a.cubic,
	})
	if err != nil {
		return err
	}
	s.ends = append(s.ends, p)
	e, err := s.spawn(s.far, benchNode{
		PKI: filepath.Join(s.dir, "pki-s"), Listen: fmt.Sprintf("%s:%d", s.far.Addr, s.far.End), Up: filepath.Join(s.dir, "up"), Primary: at, Options: *a.options, Cubic: a.cubic,
	})
	if err != nil {
		return err
	}
	s.ends = append(s.ends, e)
	return nil
}

func (s *Pair) spawn(at Site, n benchNode) (*benchEnd, error) {
	p, err := reexec.Start(context.Background(), reexec.Spec{Name: nodeName, Config: n}, reexec.Within(at.In), reexec.Stderr(s.log)) // it ends with its input
	if err != nil {
		return nil, err
	}
	e := &benchEnd{Process: p, answers: bufio.NewScanner(p.Out)}
	e.answers.Buffer(nil, 1<<20)
	_, err = e.status() // the answer shows that it runs
	return e, err
}
