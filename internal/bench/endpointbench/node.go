package endpointbench

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/endpoint/link"
	"github.com/coteriedb/coterie/internal/lib/rawconn"
	"github.com/coteriedb/coterie/internal/lib/reexec"
	"github.com/coteriedb/coterie/internal/node/walstream"
	"github.com/coteriedb/coterie/internal/postgres/replication"
)

// benchNode is one end of a measured link: a node without quorum and without decisions.
type benchNode struct {
	PKI     string            `json:"pki"`
	Listen  string            `json:"listen"`
	Socket  string            `json:"socket,omitempty"` // of the primary's server
	Up      string            `json:"up,omitempty"`     // where the secondary's walreceiver connects
	Primary string            `json:"primary"`          // address of the primary's end
	Options ag.ReplicaOptions `json:"options"`
	Cubic   bool              `json:"cubic,omitempty"` // do without BBR
}

// cubicConn is a connection on a system without BBR.
type cubicConn struct{ *endpoint.Conn }

// Steer refuses BBR.
func (c cubicConn) Steer(far bool) (string, error) {
	if !far {
		return c.Congestion(), nil
	}
	name, err := c.Use("cubic")
	return name, cmp.Or(err, errors.New("not to be used in this measurement"))
}

const (
	benchPrimary   = ag.ReplicaID("p")
	benchSecondary = ag.ReplicaID("s")
)

// Commands to the secondary's end: begin a copy of random bytes, and end it.
const (
	benchCopy    = "copy"
	benchCopyEnd = "end"
	benchCopies  = 4 // connections, as many as a seeding has
)

// nodeName is the name under which this program runs Node.
const nodeName = "bench-endpoint-node"

// Node returns the name and the helper that runs a benchNode. It answers each line of its input with the links' status,
// or with the bytes that copies have received, and ends when its input ends.
func Node() (name string, h reexec.Helper) {
	return nodeName, reexec.Typed(func(ctx context.Context, n benchNode, s reexec.Streams) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return n.run(ctx, bufio.NewScanner(s.In), json.NewEncoder(s.Out), slog.New(slog.NewTextHandler(s.Err, nil)))
	})
}

func (n benchNode) run(ctx context.Context, in *bufio.Scanner, out *json.Encoder, log *slog.Logger) (err error) {
	id, err := certs.LoadNode(n.PKI)
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + rawconn.MaxBlocked()) // like the agent
	down := replication.NewDownstream(replication.DownstreamConfig{
		SocketDir: n.Socket, Superuser: func() string { return "postgres" }, Logger: log,
		Self: func() replication.PrimaryFacts { return replication.PrimaryFacts{Leading: true, Epoch: 1, TLI: 1} },
	})
	defer down.Close()
	down.SetEpoch(1, true)
	all := walstream.NewLinks(id.Identity.ID, func(ag.ReplicaID) ag.ReplicaOptions { return n.Options }, log, func(ctx context.Context, peer ag.ReplicaID, conn net.Conn) {
		down.Handle(ctx, peer, conn)
	})
	if n.Cubic {
		all.Adapt = func(c *endpoint.Conn) link.Transport { return cubicConn{c} }
	}
	all.Endpoint = endpoint.New(endpoint.Config{
		Node: id, Listen: n.Listen, Logger: log, Authorize: func(certs.Identity, string, endpoint.Class) error { return nil },
		Handlers: map[endpoint.Class]endpoint.Handler{endpoint.ClassWAL: all.Serve, endpoint.ClassSeed: serveNoise},
	})
	var running sync.WaitGroup
	defer running.Wait()
	defer all.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 2)
	running.Go(func() { failed <- all.Endpoint.Serve(ctx) })
	if n.Up != "" {
		up := replication.NewUpstream(replication.UpstreamConfig{Dir: n.Up, Logger: log, Hello: func() replication.Hello {
			return replication.Hello{Member: benchSecondary, Copy: "copy"}
		}})
		running.Go(func() { failed <- up.Serve(ctx) })
		up.SetSource(&replication.Source{Epoch: 1, Replica: benchPrimary, Dial: func(ctx context.Context) (net.Conn, error) {
			return all.Dial(ctx, ag.Replica{ID: benchPrimary, Endpoint: n.Primary})
		}})
		if err := openToAll(filepath.Join(n.Up, ".s.PGSQL.5432")); err != nil {
			return err
		}
	}
	c := &benchCopying{dial: func() (net.Conn, error) {
		return all.Endpoint.Dial(ctx, n.Primary, endpoint.ClassSeed, benchPrimary)
	}}
	defer c.end()
	for in.Scan() {
		var answer any = all.Status()
		switch in.Text() {
		case benchCopy:
			if err := c.begin(); err != nil {
				return err
			}
			answer = c.bytes.Load()
		case benchCopyEnd:
			c.end()
			answer = c.bytes.Load()
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	cancel()
	return in.Err()
}

// serveNoise sends random bytes, which do not compress, until the other side closes the connection.
func serveNoise(_ context.Context, _ certs.Identity, conn net.Conn) {
	b := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	for {
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}

// benchCopying is a copy whose bytes are counted and dropped.
type benchCopying struct {
	dial  func() (net.Conn, error)
	bytes atomic.Int64
	conns []net.Conn
	wg    sync.WaitGroup
}

func (c *benchCopying) begin() error {
	for range benchCopies {
		conn, err := c.dial()
		if err != nil {
			return err
		}
		c.conns = append(c.conns, conn)
		c.wg.Go(func() {
			for b := make([]byte, 64<<10); ; {
				n, err := conn.Read(b)
				c.bytes.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	return nil
}

func (c *benchCopying) end() {
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
	c.wg.Wait()
}

// openToAll lets the server's user, which is not the user of the measurement, connect to the socket.
func openToAll(socket string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := os.Chmod(socket, 0o777) //nolint:gosec // a throw-away server behind it
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// benchPKI makes the identities of both ends below dir.
func benchPKI(dir string) error {
	ca, err := certs.NewCA("6f1c2f3e-0c55-4a0e-9a51-6a4d3c5a7b01", "bench")
	if err != nil {
		return err
	}
	for _, id := range []ag.ReplicaID{benchPrimary, benchSecondary} {
		path := filepath.Join(dir, "pki-"+string(id))
		if err := os.MkdirAll(path, 0o700); err != nil {
			return err
		}
		if _, err := certs.CreateNode(path, ca, certs.Identity{Group: ca.Group, Kind: certs.KindReplica, ID: id}, nil); err != nil {
			return err
		}
	}
	return nil
}

// benchEnd is a running benchNode.
type benchEnd struct {
	*reexec.Process
	mu      sync.Mutex // held while a line and its answer pass
	answers *bufio.Scanner
}

// status requests the links of that end.
func (e *benchEnd) status() (s []link.Status, err error) { return s, e.tell("", &s) }

// tell sends a line to that end and decodes its answer.
func (e *benchEnd) tell(line string, answer any) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := fmt.Fprintln(e.In, line); err != nil {
		return err
	}
	if !e.answers.Scan() {
		return errors.Join(errors.New("the measured node has ended"), e.answers.Err())
	}
	return json.Unmarshal(e.answers.Bytes(), answer)
}
