package bed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/coteriedb/coterie/internal/admin/api"
	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/bench/experiment"
	"github.com/coteriedb/coterie/internal/bench/observe"
	"github.com/coteriedb/coterie/internal/config"
	"github.com/coteriedb/coterie/internal/lab"
	"github.com/coteriedb/coterie/internal/lab/adminsocket"
	"github.com/coteriedb/coterie/internal/lab/linkem"
	"github.com/coteriedb/coterie/internal/lib/fail"
	"github.com/coteriedb/coterie/internal/measure/method"
	benchreport "github.com/coteriedb/coterie/internal/measure/report"
)

// console calls f with a connection to the database coterie of the listener, and closes the connection.
func (g *ConsoleGroup) console(ctx context.Context, f func(*pgx.Conn) error) error {
	cfg, err := pgx.ParseConfig(g.dsn)
	if err != nil {
		return err
	}
	cfg.Database = "coterie"
	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// Name returns the name of the group.
func (g *ConsoleGroup) Name() string { return g.name }

// ReadWrite returns the connection string of the listeners.
func (g *ConsoleGroup) ReadWrite() string { return g.dsn }

// ReadOnly returns the connection string of the listeners with read intent.
func (g *ConsoleGroup) ReadOnly() string { return withIntent(g.dsn) }

// Own returns the empty string: the console does not lead to the server of a member.
func (g *ConsoleGroup) Own(string) string { return "" }

// Statement runs an availability-group statement on the console.
func (g *ConsoleGroup) Statement(ctx context.Context, sql string) error {
	return g.console(ctx, func(c *pgx.Conn) error {
		_, err := c.Exec(ctx, sql)
		return err
	})
}

func (g *ConsoleGroup) names(ctx context.Context, where string) ([]string, error) {
	var names []string
	err := g.console(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT name FROM coterie.replicas WHERE "+where+" ORDER BY name")
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return names, err
}

// Members returns the names of the replicas that hold data, the primary included, in alphabetical order.
func (g *ConsoleGroup) Members(ctx context.Context) ([]string, error) {
	return g.names(ctx, "availability_mode <> 'CONFIGURATION_ONLY'")
}

// Primary returns the name of the primary. It is an error if the group has none, or more than one during a failover.
func (g *ConsoleGroup) Primary(ctx context.Context) (string, error) {
	names, err := g.names(ctx, "role = 'PRIMARY'")
	if err != nil {
		return "", err
	}
	if len(names) != 1 {
		return "", errors.New("the group has no primary now")
	}
	return names[0], nil
}

// Behind returns the readable secondaries that have not replayed up to lsn, each with its position. The console shows
// positions a moment late, so a secondary is at worst further ahead than Behind reports.
func (g *ConsoleGroup) Behind(ctx context.Context, lsn string) (behind []string, err error) {
	least, err := ag.ParseLSN(lsn)
	if err != nil {
		return nil, err
	}
	err = g.console(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, `SELECT name, coalesce(replayed, '') FROM coterie.replicas
			WHERE role = 'SECONDARY' AND name IN (SELECT target FROM coterie.routes WHERE readable AND NOT is_primary) ORDER BY name`)
		if err != nil {
			return err
		}
		var name, replayed string
		_, err = pgx.ForEachRow(rows, []any{&name, &replayed}, func() error {
			if at, err := ag.ParseLSN(replayed); err != nil || at < least { // a starting server reports no position
				behind = append(behind, fmt.Sprintf("%s (at %s)", name, cmp.Or(replayed, "an unknown place")))
			}
			return nil
		})
		return err
	})
	return behind, err
}

// LabBed is a lab as a bed: the group and its faults.
type LabBed struct {
	*ConsoleGroup
	lab *labGroup
	at  string // the node at which the client runs; empty: this host
}

// raiseBed makes a lab as a bed.
func raiseBed(ctx context.Context, o lab.Options, clientAt string) (*LabBed, error) {
	l, err := UpLab(ctx, o, o.Progress)
	if err != nil {
		return nil, err
	}
	g, ok := l.(*labGroup)
	if !ok {
		return nil, fmt.Errorf("a lab of another kind: %T", l)
	}
	b := &LabBed{lab: g, at: clientAt, ConsoleGroup: &ConsoleGroup{dsn: g.ReadWrite()}}
	if clientAt != "" {
		if b.dsn = g.Lab.DSN(clientAt); b.dsn == "" {
			return nil, errors.Join(fail.Usagef("--client-at %s: the lab has no replica of that name", clientAt), b.Remove(ctx))
		}
	}
	s, err := g.Status(ctx)
	if err == nil {
		b.name = s.Group
	}
	if err != nil {
		return nil, errors.Join(err, b.Remove(ctx))
	}
	return b, nil
}

// Remove ends the lab and removes its files.
func (b *LabBed) Remove(ctx context.Context) error {
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	return b.lab.Down(c, false)
}

// ReadOnly returns the connection string of the listeners with read intent.
func (b *LabBed) ReadOnly() string {
	if b.at != "" {
		return withIntent(b.dsn)
	}
	return b.lab.ReadOnly()
}

// Own returns the connection string of the member's own server.
func (b *LabBed) Own(member string) string { return b.lab.DSN(member) }

// Members returns the names of the nodes of the lab that hold data.
func (b *LabBed) Members(context.Context) ([]string, error) {
	var names []string
	for _, n := range b.lab.Lab.Nodes() {
		if !n.Witness {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// Primary returns the name of the primary.
func (b *LabBed) Primary(ctx context.Context) (string, error) {
	s, err := b.lab.Status(ctx)
	if err != nil {
		return "", err
	}
	if s.Primary == nil {
		return "", errors.New("the group has no primary now")
	}
	return *s.Primary, nil
}

// Do does the action to the primary.
func (b *LabBed) Do(ctx context.Context, action experiment.Action) error {
	primary, err := b.Primary(ctx)
	if err != nil {
		return err
	}
	switch action {
	case experiment.Kill:
		return b.lab.Kill(ctx, primary)
	case experiment.Pause:
		return b.lab.Pause(ctx, primary)
	case experiment.Cut:
		_, err := b.lab.Cut(ctx, primary, lab.AllNodes, false, false)
		return err
	case experiment.Planned:
		s, err := b.lab.Status(ctx)
		if err != nil {
			return err
		}
		for _, r := range s.Replicas {
			if r.Name != primary && r.Sync == ag.Synchronized {
				_, err := b.lab.Agent(primary).Failover(ctx, api.FailoverRequest{To: ag.ReplicaID(r.Name)})
				return err
			}
		}
		return errors.New("no secondary is SYNCHRONIZED, so there is nobody to fail over to")
	}
	return fmt.Errorf("no such action: %s", action)
}

// Mend undoes the action, and waits until every replica is synchronized.
func (b *LabBed) Mend(ctx context.Context, action experiment.Action) error {
	var err error
	switch action {
	case experiment.Kill, experiment.Pause:
		s, serr := b.lab.Status(ctx)
		if serr != nil {
			return serr
		}
		for _, r := range s.Replicas {
			switch r.State {
			case "down":
				err = errors.Join(err, b.lab.Start(ctx, r.Name))
			case "paused":
				err = errors.Join(err, b.lab.Resume(ctx, r.Name))
			}
		}
	case experiment.Cut:
		_, err = b.lab.Heal(ctx, lab.AllEnds, lab.AllEnds, true)
	case experiment.Planned:
	}
	return errors.Join(err, b.Reconnected(ctx, 3*time.Minute))
}

// Reconnected waits until every replica is synchronized.
func (b *LabBed) Reconnected(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for every replica to be SYNCHRONIZED", patience))
	defer cancel()
	for {
		if s, err := b.lab.Status(ctx); err == nil && s.Ready() {
			return nil
		}
		if !method.Pause(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// labLinks are the links of a lab with network namespaces.
type labLinks struct{ *LabBed }

// Shape changes every link between nodes.
func (l labLinks) Shape(ctx context.Context, shape string) error {
	s, err := linkem.ParseShape(shape)
	if err != nil {
		return err
	}
	_, err = l.lab.Link(ctx, lab.AllNodes, lab.AllNodes, s, false)
	return err
}

// RoundTrip returns the median time to connect from one node to the other's endpoint.
func (l labLinks) RoundTrip(ctx context.Context, from, to string) (time.Duration, error) {
	s, err := l.lab.Status(ctx)
	if err != nil {
		return 0, err
	}
	a, ok1 := s.Replica(from)
	b, ok2 := s.Replica(to)
	if !ok1 || !ok2 || a.Namespace == "" {
		return 0, errors.New("no network between them")
	}
	var all []time.Duration
	dial := dialIn(a.Namespace)
	for range 15 {
		start := time.Now()
		c, err := dial(ctx, "tcp", b.Endpoint)
		if err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
		_ = c.Close()
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// SyncTime measures n small synced writes to the disk of a node.
func (l labLinks) SyncTime(_ context.Context, member string, n int) (time.Duration, error) {
	return benchreport.SyncTime(l.lab.Dir(member), n)
}

// dropPageCache drops the data files of every node from the page cache. It leaves the shared_buffers of the servers as
// they are.
func (b *LabBed) dropPageCache(ctx context.Context) error {
	members, err := b.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		err := filepath.WalkDir(filepath.Join(b.lab.Dir(m), "pgdata", "base"), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) { // the server removes files at the same time
				return nil
			}
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			return dropFile(path)
		})
		if err != nil {
			return fmt.Errorf("drop the files of %s from the page cache: %w", m, err)
		}
	}
	return nil
}

// dropFile writes the dirty pages of a file to disk and drops the file from the page cache. A file that does not exist
// is not an error.
func dropFile(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return err
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// dialIn returns a dial function that connects from within a network namespace.
func dialIn(namespace string) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = linkem.Enter(namespace, func() error {
			var e error
			c, e = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
			return e
		})
		return c, err
	}
}

// Need is what an experiment requires of the lab that is made for it.
type Need struct {
	CPU     float64 // processors that each node may use; 0: not limited
	Memory  int64   // bytes that each node may use; 0: not limited
	Network bool    // every node has a network namespace of its own
	Links   string  // shape of the links between nodes, as linkem.ParseShape reads it
	Bytes   uint64  // of disk that all replicas together need for the loaded data
}

// Loaded returns the bytes of disk that the three replicas of a lab need for data of that size: the data and as much
// WAL, each three times.
func Loaded(bytes int) uint64 { return uint64(bytes) * 6 }

// LabFor makes a lab that meets n, and returns it as a bed as well. Without root the lab has no limits and no network
// of its own. clientAt is the node at which the client runs; empty: this host. The caller removes the lab with
// LabBed.Remove.
func LabFor(ctx context.Context, n Need, o lab.Options, clientAt string) (*LabBed, *experiment.Bed, error) {
	root := os.Geteuid() == 0
	bed := &experiment.Bed{}
	if n.CPU > 0 && root {
		o.Caps.CPU = n.CPU
		bed.Capped = fmt.Sprintf("%v of a processor", n.CPU)
	}
	if n.Memory > 0 && root {
		o.Caps.Memory, bed.Small = n.Memory, true
		bed.Capped = strings.TrimPrefix(fmt.Sprintf("%s and %d MiB of memory", bed.Capped, n.Memory>>20), " and ")
	}
	if (n.Network || clientAt != "") && root {
		o.Net, o.Port = lab.NetNamespaces, 0
		var err error
		if o.Links, err = linkem.ParseShape(n.Links); err != nil {
			return nil, nil, fail.Usagef("--link: %w", err)
		}
	}
	b, err := raiseBed(ctx, o, clientAt)
	if err != nil {
		return nil, nil, err
	}
	bed.Group, bed.Faults = b, b
	if root {
		bed.DropPageCache, bed.ReadBytes = b.dropPageCache, b.readBytes
	}
	if o.Net == lab.NetNamespaces {
		bed.Links = labLinks{b}
	}
	if clientAt != "" {
		s, err := b.lab.Status(ctx)
		if err != nil {
			return nil, nil, errors.Join(err, b.Remove(ctx))
		}
		r, _ := s.Replica(clientAt)
		if r.Namespace == "" {
			return nil, nil, errors.Join(fail.Refusedf("--client-at needs nodes with networks of their own: run it as root"), b.Remove(ctx))
		}
		bed.Dial, bed.Near, bed.ClientAt = dialIn(r.Namespace), clientAt, "at "+clientAt+", through that node's listener"
	}
	return b, bed, nil
}

// labGroup is a lab as the interface observe.Lab.
type labGroup struct {
	*lab.Lab
	sockets *adminsocket.Sockets
}

// UpLab makes a lab that ends with this process, and opens the administrators' sockets of its servers. The caller ends
// it with Down or Leave.
func UpLab(ctx context.Context, o lab.Options, progress func(string)) (observe.Lab, error) {
	o.Progress, o.Bound = progress, true
	l, err := RaiseLab(ctx, o)
	if err != nil {
		return nil, err
	}
	d, err := adminsocket.Open(l)
	if err != nil {
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	return &labGroup{l, d}, nil
}

func (g *labGroup) Nodes() []string {
	var names []string
	for _, n := range g.Lab.Nodes() {
		names = append(names, n.Name)
	}
	return names
}

func (g *labGroup) Dir(node string) string { return filepath.Join(g.Lab.Dir(), node) }

func (g *labGroup) Agent(node string) observe.Agent {
	l, err := config.NewLayout(g.Dir(node))
	if err != nil {
		return api.NewClient(filepath.Join(g.Dir(node), "no-such-socket"), 0)
	}
	return api.NewClient(l.AgentSock(), l.Owner())
}

// DSN returns the connection string of the node's own server through its private socket, whatever the role of the node.
func (g *labGroup) DSN(node string) string {
	return fmt.Sprintf("host=%s port=5432 user=postgres dbname=postgres sslmode=disable", g.sockets.Dir(node))
}

func (g *labGroup) Pause(_ context.Context, node string) error {
	return g.Lab.Pause(node, lab.WhatNode)
}

func (g *labGroup) Resume(_ context.Context, node string) error { return g.Lab.Resume(node) }

func (g *labGroup) Kill(_ context.Context, node string) error { return g.Lab.Kill(node, "node") }

// KillServer kills the postmaster of a node. Its agent and its keeper live.
func (g *labGroup) KillServer(_ context.Context, node string) error {
	return g.Lab.Kill(node, lab.WhatPostgres)
}

func (g *labGroup) Start(_ context.Context, node string) error { return g.Lab.Start(node) }

func (g *labGroup) Leave() {
	g.sockets.Close()
	g.Lab.Leave()
}

func (g *labGroup) Down(ctx context.Context, keepFiles bool) error {
	g.sockets.Close()
	if keepFiles {
		return g.Stop(ctx)
	}
	return g.Lab.Down(ctx)
}
