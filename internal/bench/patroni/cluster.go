package patroni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/lib/retry"
)

// readyTimeout bounds each wait for the cluster: with default settings a replica looks every ten seconds.
const readyTimeout = 3 * time.Minute

// Options describe where a cluster is and which PostgreSQL it uses.
type Options struct {
	Programs Programs
	Dir      string // empty, reachable for the user of the servers
	Bin      string // PostgreSQL's programs
	UID, GID int    // of the servers, when this is root
}

// Cluster is three nodes with their etcd members and HAProxy. It is for one goroutine.
type Cluster struct {
	*layout
	programs Programs
	uid, gid int
	others   []*process // etcd and HAProxy
	settings Settings
}

// Start makes the cluster and returns when every replica streams and one is synchronous. Stop ends it, also after an
// error.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	l, err := newLayout(o.Dir, o.Bin)
	if err != nil {
		return nil, err
	}
	c := &Cluster{layout: l, programs: o.Programs, uid: o.UID, gid: o.GID, settings: Default}
	if err := os.Chown(o.Dir, o.UID, o.GID); err != nil {
		return nil, err
	}
	if err := l.write(o.UID, o.GID); err != nil {
		return nil, err
	}
	for _, n := range l.nodes {
		p, err := c.start("etcd", n.name+"-etcd.log", o.Programs.Etcd, l.etcd(n)...)
		if err != nil {
			return c, err
		}
		c.others = append(c.others, p)
	}
	if err := c.await(ctx, "etcd", func(ctx context.Context) error {
		return get(ctx, "http://"+local(l.nodes[0].etcd)+"/health")
	}); err != nil {
		return c, err
	}
	for i, n := range l.nodes {
		if err := c.Restart(n.name); err != nil {
			return c, err
		}
		if i > 0 {
			continue
		}
		if err := c.await(ctx, "the first primary", func(ctx context.Context) error { _, err := c.Primary(ctx); return err }); err != nil {
			return c, err
		}
	}
	p, err := c.start("haproxy", "haproxy.log", o.Programs.HAProxy, "-db", "-f", filepath.Join(l.dir, "haproxy.cfg"))
	if err != nil {
		return c, err
	}
	c.others = append(c.others, p)
	return c, c.Ready(ctx)
}

// Stop ends every process of the cluster. The caller removes its files.
func (c *Cluster) Stop() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, c.Kill(n.name))
	}
	for _, p := range c.others {
		errs = append(errs, kill(p.cmd.Process.Pid), p.gone())
	}
	return errors.Join(append(errs, Sweep(c.dir))...)
}

func (c *Cluster) node(name string) (*node, error) {
	for _, n := range c.nodes {
		if n.name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q", name)
}

// Kill ends Patroni, the server and every backend of a node at one instant. The etcd member beside it lives on.
func (c *Cluster) Kill(name string) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	// Patroni may be starting the server just now: look again until there is none.
	for range 5 {
		roots := n.roots()
		if len(roots) == 0 {
			break
		}
		if err := kill(roots...); err != nil {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		if n.container != nil {
			if err := n.container.gone(); err != nil {
				return err
			}
			n.container = nil
		}
	}
	return nil
}

// Leave ends the Patroni of a node in order, as its service does when it is stopped. While the cluster is paused its
// server runs on.
func (c *Cluster) Leave(name string) error {
	n, err := c.node(name)
	if err != nil || n.container == nil {
		return err
	}
	if err := n.container.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	err = n.container.gone()
	n.container = nil
	return err
}

// Names returns the nodes of the cluster. Below the cluster's directory each has one by its name, with patroni.yml and
// the data directory data.
func (c *Cluster) Names() (all []string) {
	for _, n := range c.nodes {
		all = append(all, n.name)
	}
	return all
}

// Restart starts Patroni on a node, which starts the server.
func (c *Cluster) Restart(name string) error {
	n, err := c.node(name)
	if err != nil {
		return err
	}
	n.container, err = c.start("patroni", n.name+"-patroni.log", c.programs.Patroni, filepath.Join(n.dir, "patroni.yml"))
	return err
}

// Primary names the node that reports itself as the primary.
func (c *Cluster) Primary(ctx context.Context) (string, error) {
	last := errors.New("no node answers")
	for _, n := range c.nodes {
		if err := get(ctx, "http://"+local(n.rest)+"/primary"); err != nil {
			last = err
			continue
		}
		return n.name, nil
	}
	return "", fmt.Errorf("find Patroni's primary: %w", last)
}

// Use puts settings in force and waits until every Patroni has read them.
func (c *Cluster) Use(ctx context.Context, s Settings) error {
	if s == c.settings {
		return nil
	}
	b, err := json.Marshal(s.dcs())
	if err != nil {
		return err
	}
	primary, err := c.Primary(ctx)
	if err != nil {
		return err
	}
	n, err := c.node(primary)
	if err != nil {
		return err
	}
	if err := patch(ctx, "http://"+local(n.rest)+"/config", b); err != nil {
		return err
	}
	old := c.settings
	c.settings = s
	return retry.Sleep(ctx, time.Duration(max(old.LoopWait, s.LoopWait)+2)*time.Second)
}

// Ready waits until two replicas stream, one of them synchronously, and HAProxy has found the primary for either
// settings.
func (c *Cluster) Ready(ctx context.Context) error {
	return c.await(ctx, "every replica to stream and HAProxy to find the primary", func(ctx context.Context) error {
		primary, err := c.Primary(ctx)
		if err != nil {
			return err
		}
		var streaming, sync int
		err = ask(ctx, c.DSN(primary), "select count(*), count(*) filter (where sync_state = 'sync') from pg_stat_replication where state = 'streaming' and application_name <> 'pg_basebackup'",
			&streaming, &sync)
		if err == nil && (streaming < len(c.nodes)-1 || sync < 1) {
			err = fmt.Errorf("%d replicas stream, %d of them synchronously", streaming, sync)
		}
		for _, s := range []Settings{Default, Floor} {
			var recovery bool
			if err == nil {
				err = ask(ctx, c.ReadWrite(s), "select pg_is_in_recovery()", &recovery)
			}
			if err == nil && recovery {
				err = errors.New("HAProxy leads to a standby")
			}
		}
		return err
	})
}

// DSN is the connection string of a node's own server.
func (c *Cluster) DSN(name string) string {
	n, err := c.node(name)
	if err != nil {
		return ""
	}
	return c.uri(n.port)
}

// ReadWrite is the connection string of the primary, through HAProxy.
func (c *Cluster) ReadWrite(s Settings) string { return c.uri(c.fronts[s.Name]) }

func (c *Cluster) uri(port int) string {
	u := url.URL{Scheme: "postgresql", User: url.UserPassword("postgres", c.password), Host: local(port), Path: "/postgres", RawQuery: "sslmode=disable"}
	return u.String()
}

func (c *Cluster) await(ctx context.Context, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("waited %v for %s", readyTimeout, what))
	defer cancel()
	var last error
	err := retry.Until(ctx, 200*time.Millisecond, func() (bool, error) {
		last = ok(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w; last seen: %w; the logs are in %s", err, last, c.dir)
	}
	return nil
}

const callTimeout = 2 * time.Second

func get(ctx context.Context, url string) error { return call(ctx, http.MethodGet, url, nil) }

func patch(ctx context.Context, url string, body []byte) error {
	return call(ctx, http.MethodPatch, url, body)
}

// call sends a request to Patroni or etcd. Only the status of the answer counts.
func call(ctx context.Context, method, url string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(a.Body, 1<<20)) // so that the connection is used again
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, url, a.Status)
	}
	return nil
}

// ask reads one row.
func ask(ctx context.Context, dsn, sql string, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return conn.QueryRow(ctx, sql).Scan(into...)
}
