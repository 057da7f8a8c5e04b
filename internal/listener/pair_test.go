package listener

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/coteriedb/coterie/internal/ag"
)

// pair is a real primary with a real synchronous standby. The relay between them can be frozen: then the standby
// flushes, and its feedback does not arrive.
type pair struct {
	primary, standby *server
	relay            *relayUp
}

var pairs struct {
	once sync.Once
	err  error
	pair *pair
}

// thePair starts the pair at its first use. TestMain stops it with the other servers.
func thePair(t *testing.T) *pair {
	t.Helper()
	servers.once.Do(func() { servers.err = startServers() })
	if errors.Is(servers.err, errNoPostgres) {
		t.Skip(servers.err)
	}
	if servers.err != nil {
		t.Fatal(servers.err)
	}
	pairs.once.Do(func() { pairs.pair, pairs.err = startPair() })
	if pairs.err != nil {
		t.Fatal(pairs.err)
	}
	t.Cleanup(func() { pairs.pair.relay.freeze(false) })
	return pairs.pair
}

func startPair() (*pair, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Dir = servers.root
		if err := asServer(cmd); err != nil {
			return err
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		return nil
	}
	dir := func(name string) string { return filepath.Join(servers.root, name) }
	if err := run("mkdir", dir("p"), dir("s"), dir("r")); err != nil {
		return nil, err
	}
	if err := run(filepath.Join(bin, "initdb"), "-N", "-A", "trust", "-U", "postgres", "--locale=C", "-E", "UTF8", dir("p")+"/data"); err != nil {
		return nil, err
	}
	p := &pair{primary: &server{name: "p", dir: dir("p")}, standby: &server{name: "s", dir: dir("s")}}
	p.primary.args = []string{"-c", "synchronous_standby_names=ANY 1 (s, " + impostor + ")", "-c", "synchronous_commit=local", "-c", "wal_sender_timeout=0"}
	if err := p.primary.start(bin); err != nil {
		return nil, err
	}
	up := false
	defer func() {
		if !up {
			p.primary.stop()
		}
	}()
	if p.relay, err = newRelayUp(dir("r"), dir("p")); err != nil {
		return nil, err
	}
	if err := run(filepath.Join(bin, "pg_basebackup"), "-h", dir("p"), "-p", "5432", "-U", "postgres", "-D", dir("s")+"/data", "-X", "stream", "-c", "fast", "-R"); err != nil {
		return nil, err
	}
	p.standby.args = []string{"-c", "primary_conninfo=host=" + dir("r") + " port=5432 user=postgres application_name=s", "-c", "hot_standby=on"}
	if err := p.standby.start(bin); err != nil {
		return nil, err
	}
	up = true
	return p, nil
}

func (p *pair) stop() {
	p.relay.freeze(false)
	p.standby.stop()
	p.primary.stop()
	_ = p.relay.l.Close()
}

// flushed asks the primary what its standby has reported.
func (p *pair) flushed(ctx context.Context) (ag.LSN, error) {
	conn, err := p.primary.connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var text *string
	err = conn.QueryRow(ctx, "select max(flush_lsn)::text from pg_stat_replication where application_name = 's'").Scan(&text)
	if err != nil || text == nil {
		return 0, err
	}
	return ag.ParseLSN(*text)
}

// flushLSN and durable are what the agent offers to the listener, asked of PostgreSQL itself.
func (p *pair) flushLSN(ctx context.Context) (ag.LSN, error) {
	conn, err := p.primary.connect(ctx, "postgres")
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var text string
	if err := conn.QueryRow(ctx, "select pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return 0, err
	}
	return ag.ParseLSN(text)
}

func (p *pair) durable(ctx context.Context, lsn ag.LSN) error {
	for {
		if at, err := p.flushed(ctx); err == nil && at >= lsn {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// group is a listener before the primary of the pair.
func (p *pair) group(t *testing.T, change func(*Config)) *group {
	t.Helper()
	g := newGroup(t, func(c *Config) {
		c.Rules, c.FlushLSN, c.Durable, c.Log = trustAll, p.flushLSN, p.durable, p.primary.reader(t)
		if change != nil {
			change(c)
		}
	})
	g.servers = map[ag.ReplicaID]*server{"a": p.primary}
	g.gate.Store(openGate())
	return g
}

// confirmed reports whether the standby has told the primary that it has flushed all WAL.
func (p *pair) confirmed(t *testing.T) bool {
	t.Helper()
	lsn, err := p.flushLSN(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at, err := p.flushed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at >= lsn
}

// inSyncRep waits until the backend waits for the standby.
func (p *pair) inSyncRep(t *testing.T, pid uint32) {
	t.Helper()
	conn, err := p.primary.connect(t.Context(), "postgres")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	waitFor(t, "the commit waits for the standby", func() bool {
		return value[bool](t, conn, "select exists(select 1 from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')", pid)
	})
}

func sqlOn(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, q := range statements {
		if _, err := conn.Exec(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

// relayUp is between the standby and the primary. Frozen, it passes WAL and holds the standby's feedback.
type relayUp struct {
	l  net.Listener
	mu sync.Mutex
	ch chan struct{} // not nil while frozen; closed at its end
}

func newRelayUp(dir, target string) (*relayUp, error) {
	l, err := net.Listen("unix", filepath.Join(dir, socketName))
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(dir, socketName), 0o777); err != nil {
		return nil, err
	}
	r := &relayUp{l: l}
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("unix", filepath.Join(target, socketName))
			if err != nil {
				_ = down.Close()
				continue
			}
			go func() { _, _ = io.Copy(down, up); _ = down.Close() }()
			go r.up(up, down)
		}
	}()
	return r, nil
}

func (r *relayUp) up(up, down net.Conn) {
	defer func() { _ = up.Close() }()
	buf := make([]byte, 16<<10)
	for {
		n, err := down.Read(buf)
		if err != nil {
			return
		}
		r.mu.Lock()
		ch := r.ch
		r.mu.Unlock()
		if ch != nil {
			<-ch
		}
		if _, err := up.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (r *relayUp) freeze(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case on && r.ch == nil:
		r.ch = make(chan struct{})
	case !on && r.ch != nil:
		close(r.ch)
		r.ch = nil
	}
}

func (p *pair) reset(t *testing.T) {
	t.Helper()
	p.relay.freeze(false)
	p.primary.sql(t, "create table if not exists acks(id int primary key)", "truncate acks")
	waitFor(t, "the standby has all", func() bool { return p.confirmed(t) })
}
