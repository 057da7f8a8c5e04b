package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/lib/boottime"
	"github.com/coteriedb/coterie/internal/lib/retry"
)

const (
	socketName     = ".s.PGSQL.5432" // in every socket directory of a node
	maxSocketPath  = 107             // sockaddr_un
	startupTimeout = 10 * time.Second
	dialTimeout    = 10 * time.Second
	maxLocal       = 64 // local connections at a time

	retryFirst    = 5 * time.Millisecond   // half of the first wait after a source could not be reached or refused: it may lead in a moment
	retryMost     = 500 * time.Millisecond // the longest wait for one that may be starting
	retryRefused  = 2 * time.Second        // the longest wait for one that refuses this copy
	queryPatience = 10 * time.Second       // how long a session other than a walreceiver's is kept while dialing fails
)

// Source is the replica that leads the epoch, the source of this node's WAL, and how to reach its agent.
type Source struct {
	Epoch   ag.Epoch
	Replica ag.ReplicaID
	Dial    func(ctx context.Context) (net.Conn, error)
}

// same reports whether connections to s may stay if t replaces it.
func (s *Source) same(t *Source) bool {
	return s != nil && t != nil && s.Epoch == t.Epoch && s.Replica == t.Replica
}

// UpstreamConfig is what an Upstream needs to run.
type UpstreamConfig struct {
	Dir    string       // the directory of the socket; 0700, because a client of the socket is a superuser at the source
	Hello  func() Hello // the facts of this node now, called per attempt; Kind is filled in by the Upstream
	Logger *slog.Logger // nil: none

	// DeadAfter is the silence on a WAL stream after which a source is considered dead; default 13 s. It must be well
	// above a Downstream's ProbeAfter (3 s), its longest silence.
	DeadAfter time.Duration
}

// UpstreamStatus is the last state of an Upstream. Times are of boottime, 0 for never.
type UpstreamStatus struct {
	Connected bool          // a walreceiver is joined to the source
	Since     time.Duration // the last change of Connected
	Replica   ag.ReplicaID  // of the source in force; empty while holding
	Epoch     ag.Epoch      // of the source in force
	Held      int           // local connections that wait for a source
	Received  uint64        // bytes from sources, of all connections since the start
	Sent      uint64        // bytes to sources
	LastRead  time.Duration // the last byte from a source on a WAL stream

	Answer      Answer       // the last answer to a Hello of kind wal
	AnswerFrom  ag.ReplicaID // the replica that gave it,
	AnswerEpoch ag.Epoch     // in which epoch,
	AnswerAt    time.Duration
	Err         string // the last failure to reach the source in force; empty after a success
}

// Upstream serves the Unix socket to which the local walreceiver, pg_rewind and slot synchronization connect, and joins
// each connection to the present source. While no source exists, or it cannot be reached or refuses, a walreceiver
// waits in silence: PostgreSQL logs nothing, and continues at once when a source exists.
type Upstream struct {
	cfg            UpstreamConfig
	log            *slog.Logger
	received, sent atomic.Uint64
	lastRead       atomic.Int64

	mu      sync.Mutex
	source  *Source
	changed chan struct{} // closed and replaced when source changes
	joins   map[*join]struct{}
	status  UpstreamStatus // the fields that are not counted above
}

// join is an attempt to reach a source for one local connection, and the relay after it.
type join struct {
	source *Source
	cancel context.CancelFunc
	done   chan struct{} // closed when no byte of the source can reach the local connection any more
}

// NewUpstream returns an Upstream without a source. Serve runs it.
func NewUpstream(cfg UpstreamConfig) *Upstream {
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, 13*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	return &Upstream{cfg: cfg, log: cfg.Logger, changed: make(chan struct{}), joins: make(map[*join]struct{})}
}

// Serve listens on the socket until ctx is done; then it ends every connection and removes the socket.
func (u *Upstream) Serve(ctx context.Context) error {
	path := filepath.Join(u.cfg.Dir, socketName)
	if len(path) > maxSocketPath {
		return fmt.Errorf("the socket path %s has %d bytes; unix sockets allow %d", path, len(path), maxSocketPath)
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
		_ = os.Remove(path) // of a killed agent: the lock of the node directory proves that no other runs
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("serve the upstream socket: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	room := make(chan struct{}, maxLocal)
	for {
		local, err := u.accept(ctx, l)
		if ctx.Err() != nil {
			if err == nil {
				_ = local.Close()
			}
			return nil
		}
		if err != nil {
			_ = l.Close()
			return fmt.Errorf("serve the upstream socket: %w", err)
		}
		select {
		case room <- struct{}{}:
			conns.Go(func() {
				defer func() { <-room }()
				u.serve(ctx, local)
			})
		default:
			_ = local.Close()
		}
	}
}

// accept tries again after an error that passes, such as too many open files: clients of the listener may have all of
// them.
func (u *Upstream) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	pause := retryFirst
	for {
		local, err := l.Accept()
		if err == nil || errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return local, err
		}
		u.log.Warn("the upstream socket could not accept a connection", "err", err, "retry_in", pause)
		if retry.Sleep(ctx, pause) != nil {
			return nil, ctx.Err()
		}
		pause = min(2*pause, retryMost)
	}
}

// SetSource changes the source; nil holds every connection. Connections of another source or epoch begin to close at
// once. Seal waits until they are closed.
func (u *Upstream) SetSource(s *Source) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s != nil {
		c := *s
		s = &c
	}
	if u.source.same(s) || u.source == nil && s == nil {
		u.source = s // Dial may be new
		return
	}
	u.source = s
	u.status.Err = ""
	close(u.changed)
	u.changed = make(chan struct{})
	for j := range u.joins {
		if !j.source.same(s) {
			j.cancel()
		}
	}
}

// Seal removes the source and returns when no byte of one can reach PostgreSQL through this Upstream any more. The
// contents of the socket's buffer may still be read: the caller waits for the walreceiver to vanish. Held connections
// stay held. An error means that ctx was done first; the source stays removed.
func (u *Upstream) Seal(ctx context.Context) error {
	u.SetSource(nil)
	u.mu.Lock()
	var wait []*join
	for j := range u.joins {
		wait = append(wait, j)
	}
	u.mu.Unlock()
	for _, j := range wait {
		select {
		case <-j.done:
		case <-ctx.Done():
			return fmt.Errorf("seal: wait for streams to close: %w", ctx.Err())
		}
	}
	return nil
}

// Status returns the last state of the Upstream.
func (u *Upstream) Status() UpstreamStatus {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.status
	s.Received, s.Sent = u.received.Load(), u.sent.Load()
	s.LastRead = time.Duration(u.lastRead.Load())
	if u.source != nil {
		s.Replica, s.Epoch = u.source.Replica, u.source.Epoch
	}
	return s
}

// serve handles a local connection until its end.
func (u *Upstream) serve(ctx context.Context, local net.Conn) {
	defer func() { _ = local.Close() }()
	defer context.AfterFunc(ctx, func() { _ = local.Close() })()
	_ = local.SetDeadline(time.Now().Add(startupTimeout))
	s, err := readStartup(local)
	if err != nil {
		if !errors.Is(err, errCancel) && !errors.Is(err, io.EOF) {
			u.log.Warn("local connection refused", "err", err)
		}
		return
	}
	_ = local.SetDeadline(time.Time{})
	kind, err := s.kind()
	if err != nil {
		_, _ = local.Write(fatalMessage("22023", err.Error(), ""))
		return
	}
	c := &localConn{Conn: local, kind: kind, greeting: s.negotiation()}
	if err := u.attach(ctx, c); err != nil {
		_, _ = local.Write(fatalMessage("57P03", err.Error(), "The log of the agent on both nodes says more."))
	}
}

// localConn is a connection of the local PostgreSQL, or of pg_rewind, that waits for a source.
type localConn struct {
	net.Conn
	kind     string
	greeting []byte // sent before the source's first byte
	early    []byte // the bytes that the client sent while it waited
}

// attach tries to join c to the source in force until it has been joined, and returns when that has ended. The error is
// for the client; a walreceiver gets none, because it is held instead.
func (u *Upstream) attach(ctx context.Context, c *localConn) error {
	began := boottime.Now()
	retry := retryFirst
	for {
		u.mu.Lock()
		src, changed := u.source, u.changed
		u.mu.Unlock()
		var again <-chan time.Time // never, without a source
		if src != nil {
			joined, err := u.try(ctx, c, src)
			var refused *RefusedError
			switch isRefusal := errors.As(err, &refused); {
			case joined || ctx.Err() != nil:
				return nil
			case c.kind != KindWAL && (isRefusal || boottime.Now()-began > queryPatience):
				return err
			case isRefusal && refused.Answer.Code != CodeBusy && refused.Answer.Code != CodeNotPrimary:
				retry = min(retry*2, retryRefused)
			default:
				retry = min(retry*2, retryMost)
			}
			again = time.After(retry)
		} else {
			retry = retryFirst
		}
		if !u.hold(ctx, c, changed, again) {
			return nil
		}
	}
}

// hold waits until the source changes or the next attempt is due, and reports whether c is still connected then.
func (u *Upstream) hold(ctx context.Context, c *localConn, changed <-chan struct{}, again <-chan time.Time) bool {
	u.count(func(s *UpstreamStatus) { s.Held++ })
	defer u.count(func(s *UpstreamStatus) { s.Held-- })
	gone, stop := c.listen()
	defer stop()
	select {
	case <-changed:
	case <-again:
	case <-gone:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

func (u *Upstream) count(change func(*UpstreamStatus)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change(&u.status)
}

// listen reads from a connection that has nothing to send yet, to learn when it closes: gone is closed then. stop ends
// the reading and returns when it has ended.
func (c *localConn) listen() (gone <-chan struct{}, stop func()) {
	left := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		buf := make([]byte, 512)
		n, err := c.Read(buf)
		c.early = append(c.early, buf[:n]...)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) || len(c.early) > 16<<10 {
			close(left)
		}
	})
	return left, func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		reading.Wait()
		_ = c.SetReadDeadline(time.Time{})
	}
}

// try makes one attempt to join c to src. joined means that the client has, or could have, received bytes of the
// source: the connection cannot be used again.
func (u *Upstream) try(ctx context.Context, c *localConn, src *Source) (joined bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	j := &join{source: src, cancel: cancel, done: make(chan struct{})}
	if !u.begin(j) {
		return false, errors.New("the source has changed")
	}
	defer u.finish(j)
	gone, stop := c.listen()
	defer stop()
	stopWatch := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-gone:
			cancel()
		case <-stopWatch:
		}
	})
	remote, err := u.open(ctx, c.kind, src)
	close(stopWatch)
	watch.Wait()
	if err != nil {
		u.count(func(s *UpstreamStatus) { s.Err = err.Error() })
		u.log.Debug("source not joined", "source", src.Replica, "epoch", src.Epoch, "kind", c.kind, "err", err)
		return false, err
	}
	defer func() { _ = remote.Close() }()
	stop()
	log := u.log.With("source", src.Replica, "epoch", src.Epoch, "kind", c.kind)
	log.Info("source joined")
	u.connected(c.kind, true)
	err = u.relay(ctx, c, remote)
	u.connected(c.kind, false)
	log.Info("source left", "cause", err)
	return true, nil
}

// begin registers an attempt, unless its source is no longer the one in force.
func (u *Upstream) begin(j *join) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.source.same(j.source) {
		return false
	}
	u.joins[j] = struct{}{}
	return true
}

func (u *Upstream) finish(j *join) {
	u.mu.Lock()
	delete(u.joins, j)
	u.mu.Unlock()
	close(j.done)
}

func (u *Upstream) connected(kind string, yes bool) {
	if kind != KindWAL {
		return
	}
	u.count(func(s *UpstreamStatus) {
		s.Connected, s.Since = yes, boottime.Now()
		if yes {
			s.Err = ""
		}
	})
}
