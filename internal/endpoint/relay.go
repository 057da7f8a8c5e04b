package endpoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

// This file reaches a member that does not answer through another member (decision 59). The dialling side opens a
// stream of class relay to a third member and names the member it wants. The relay connects to that member's address in
// the configuration and copies bytes. The two ends shake hands inside that stream, as on a direct connection: the relay
// sees only their TLS.

const (
	relayAfter    = 700 * time.Millisecond // that a direct connection has before relays are tried
	relayConnect  = 3 * time.Second        // for the relay's own connection
	relayPause    = 5 * time.Second        // before relays that failed are tried again
	relayReturn   = 2 * time.Second        // between attempts to connect directly
	relayDrain    = 5 * time.Second        // without a byte, after which a pipe of which one end has ended is closed
	relayBuffer   = 32 << 10               // bytes held for each direction of a pipe
	maxPipes      = 64                     // pipes of one relay, all members together
	maxMemberName = 64                     // bytes
	relayForgets  = 10 * relayReturn       // without use, after which the direct path is not tried any more
)

// relayedClasses are the classes that may be relayed. Heartbeats and the quorum's own traffic are not: a vote is about
// what the voter itself sees of the network.
var relayedClasses = []Class{ClassControl, ClassWAL, ClassSeed, ClassSQL}

// Relay is a member that may relay.
type Relay struct {
	ID   ag.ReplicaID
	Addr string
}

// errDirect ends a relayed connection when the direct path works again.
var errDirect = fmt.Errorf("%w: the direct way is back", io.ErrUnexpectedEOF)

// relayedConn is the TLS inside a relayed connection.
type relayedConn struct {
	*tls.Conn
	over atomic.Bool // it was cut because the direct path works again
}

func (d *relayedConn) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	return n, d.why(err)
}

func (d *relayedConn) Write(p []byte) (int, error) {
	n, err := d.Conn.Write(p)
	return n, d.why(err)
}

func (d *relayedConn) why(err error) error {
	if err != nil && d.over.Load() {
		return errDirect
	}
	return err
}

// outer is the connection to the relay, below the TLS of a relayedConn: Close cuts it.
type outer struct{ *Conn }

func (o outer) Close() error {
	o.abort()
	return nil
}

// Via returns the member that relays the connection, "" for a direct one.
func (c *Conn) Via() string { return string(c.via) }

// relayCache is what an endpoint knows about the members that it reaches through relays only.
type relayCache struct {
	wg          sync.WaitGroup
	unreachable map[ag.ReplicaID]string    // at which address a member is not reached directly; Endpoint.mu guards it
	tried       map[ag.ReplicaID]time.Time // when all relays to it failed last; Endpoint.mu guards it

	wanted  map[ag.ReplicaID]time.Time  // when dialling it failed last; Endpoint.mu guards it
	parked  map[ag.ReplicaID]chan *Conn // streams that it opened for this side's use; Endpoint.mu guards the map
	parking map[ag.ReplicaID]bool       // this side opens such streams there; Endpoint.mu guards it

	pipes       atomic.Int64
	total, sent atomic.Int64
}

func newRelayCache() relayCache {
	return relayCache{
		unreachable: make(map[ag.ReplicaID]string), tried: make(map[ag.ReplicaID]time.Time), wanted: make(map[ag.ReplicaID]time.Time),
		parked: make(map[ag.ReplicaID]chan *Conn), parking: make(map[ag.ReplicaID]bool),
	}
}

// RelayStatus counts the connections that this node has relayed for others.
type RelayStatus struct {
	Open, Total, Bytes int64
}

// Relayed returns the counters of what this node relays for others.
func (e *Endpoint) Relayed() RelayStatus {
	return RelayStatus{e.relayCache.pipes.Load(), e.relayCache.total.Load(), e.relayCache.sent.Load()}
}

// unanswered reports whether the member may live in spite of this error of a direct connection. After a refusal, or the
// answer of another node, it does not.
func unanswered(err error) bool {
	var ne net.Error
	return errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &ne) && ne.Timeout()
}

// attempt is the result of one attempt to reach a member.
type attempt struct {
	c       *Conn
	err     error
	relayed bool
}

// final reports whether no other attempt need be waited for.
func (a attempt) final() bool { return a.err == nil || !a.relayed && !unanswered(a.err) }

// dialTCP connects directly. If that takes long or the network does not answer, it also tries other members as relays.
// It returns the first connection that succeeds.
func (e *Endpoint) dialTCP(ctx context.Context, addr string, class Class, want ag.ReplicaID) (*Conn, error) {
	if want == "" || e.cfg.Relays == nil || !slices.Contains(relayedClasses, class) {
		return e.dialDirect(ctx, addr, class, want)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan attempt, 3)
	go func() {
		c, err := e.dialDirect(ctx, addr, class, want)
		results <- attempt{c, err, false}
	}()
	running := 1
	ask := sync.OnceFunc(func() {
		running += 2
		go func() {
			c, err := e.dialRelays(ctx, class, want)
			results <- attempt{c, err, true}
		}()
		go func() {
			c, err := e.dialBack(ctx, class, want)
			results <- attempt{c, err, true}
		}()
	})
	wait := time.NewTimer(e.headStart(want))
	defer wait.Stop()
	var errs error
	for running > 0 {
		select {
		case <-wait.C:
			ask()
		case a := <-results:
			running--
			if a.final() || ctx.Err() != nil {
				go abandon(results, running)
				if a.err == nil && a.c.via != "" {
					e.markUnreachable(want, addr, a.c.via)
				}
				return a.c, a.err
			}
			errs = errors.Join(errs, a.err)
			ask()
		}
	}
	return nil, errs
}

// abandon cuts connections that came too late. It returns when the attempts have ended, which their context makes them
// do.
func abandon(results <-chan attempt, running int) {
	for range running {
		if a := <-results; a.err == nil {
			a.c.abort()
		}
	}
}

// relaysTo lists the members that may relay to that member now; none if the relays failed within relayPause.
func (e *Endpoint) relaysTo(want ag.ReplicaID) []Relay {
	e.mu.Lock()
	tried := e.relayCache.tried[want]
	e.mu.Unlock()
	if time.Since(tried) < relayPause {
		return nil
	}
	return e.cfg.Relays(want)
}

// headStart is how long to wait for a direct connection before relays are tried.
func (e *Endpoint) headStart(want ag.ReplicaID) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, far := e.relayCache.unreachable[want]; far {
		return 0
	}
	return relayAfter
}

// dialRelays tries all relays at once and returns the first connection that succeeds.
func (e *Endpoint) dialRelays(ctx context.Context, class Class, want ag.ReplicaID) (*Conn, error) {
	vias := e.relaysTo(want)
	if len(vias) == 0 {
		return nil, errors.New("no other member may know a way")
	}
	ctx, cancel := context.WithTimeout(ctx, relayConnect+e.cfg.HandshakeTimeout)
	defer cancel()
	results := make(chan attempt, len(vias))
	for _, via := range vias {
		go func() {
			c, err := e.dialRelay(ctx, via, class, want)
			if err != nil {
				err = fmt.Errorf("by way of %s: %w", via.ID, err)
			}
			results <- attempt{c, err, true}
		}()
	}
	var errs error
	for i := range vias {
		a := <-results
		if a.err == nil {
			go abandon(results, len(vias)-i-1)
			return a.c, nil
		}
		errs = errors.Join(errs, a.err)
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		e.mu.Lock()
		e.relayCache.tried[want] = time.Now()
		e.mu.Unlock()
	}
	return nil, errs
}

// dialRelay connects through one relay.
func (e *Endpoint) dialRelay(ctx context.Context, via Relay, class Class, want ag.ReplicaID) (*Conn, error) {
	to, err := e.dialDirect(ctx, via.Addr, ClassRelay, via.ID)
	if err != nil {
		return nil, err
	}
	c := &Conn{raw: outer{to}, e: e, class: class, since: time.Now(), via: via.ID}
	client := tls.Client(c.raw, e.clientTLS(c, want))
	c.Conn = &relayedConn{Conn: client}
	return c, e.conclude(ctx, c, func() error {
		if _, err := to.Write(append([]byte{byte(len(want))}, want...)); err != nil {
			return err
		}
		refusal, err := readVerdict(to)
		if err != nil {
			return fmt.Errorf("wait for %s to relay: %w", via.ID, err)
		}
		if refusal != "" {
			return &RefusedError{Peer: to.peer, Class: ClassRelay, Message: refusal}
		}
		return client.HandshakeContext(ctx)
	})
}

// markUnreachable records that a member is reached through relays only, and starts watchDirect.
func (e *Endpoint) markUnreachable(id ag.ReplicaID, addr string, via ag.ReplicaID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	_, known := e.relayCache.unreachable[id]
	e.relayCache.unreachable[id] = addr // it may have moved
	if known {
		return
	}
	e.log.Warn("a member does not answer directly, and is reached by way of another one", "member", id, "address", addr, "relay", via)
	e.relayCache.wg.Go(func() { e.watchDirect(id) })
}

// watchDirect tries to connect to a member directly, at the address at which it was dialled last, until that succeeds,
// no relayed connection is in use any more, or the endpoint is closed. When it succeeds, relayed connections are cut,
// so that they are opened again directly.
func (e *Endpoint) watchDirect(id ag.ReplicaID) {
	used := time.Now()
	back, addr := false, ""
	for !back && time.Since(used) < relayForgets {
		select {
		case <-time.After(relayReturn):
		case <-e.over:
			return
		}
		if len(e.relayedTo(id)) > 0 {
			used = time.Now()
		}
		e.mu.Lock()
		addr = e.relayCache.unreachable[id]
		e.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), relayReturn)
		c, err := e.dialDirect(ctx, addr, ClassControl, id)
		cancel()
		if back = err == nil; back {
			_ = c.Close()
		}
	}
	e.mu.Lock()
	delete(e.relayCache.unreachable, id)
	e.mu.Unlock()
	if !back {
		return
	}
	e.log.Info("a member answers directly again", "member", id, "address", addr)
	for _, c := range e.relayedTo(id) {
		if d, ok := c.Conn.(*relayedConn); ok {
			d.over.Store(true)
		}
		c.abort()
	}
}

// relayedTo lists the live relayed connections to a member.
func (e *Endpoint) relayedTo(id ag.ReplicaID) (all []*Conn) {
	for _, c := range e.live() {
		if c.via != "" && c.peer.ID == id {
			all = append(all, c)
		}
	}
	return all
}

// serveRelay connects a member with another one, and copies bytes until one side ends or is no longer authorised.
func (e *Endpoint) serveRelay(ctx context.Context, peer certs.Identity, conn net.Conn) {
	c, ok := conn.(*Conn)
	if !ok {
		return
	}
	_ = c.SetDeadline(time.Now().Add(e.cfg.HandshakeTimeout))
	to, err := e.relayTarget(ctx, c)
	if err == nil {
		defer func() { _ = to.Close() }()
	}
	if open := e.relayCache.pipes.Add(1); open > maxPipes && err == nil {
		err = fmt.Errorf("%d connections are relayed already", maxPipes)
	}
	defer e.relayCache.pipes.Add(-1)
	if werr := writeVerdict(c, err); err != nil || werr != nil {
		e.log.Warn("not relayed", "from", peer.ID, "to", c.relays(), "error", errors.Join(err, werr))
		return
	}
	_ = c.SetDeadline(time.Time{})
	e.relayCache.total.Add(1)
	defer context.AfterFunc(ctx, func() { _ = to.Close() })()
	e.log.Info("relaying between two members", "from", peer.ID, "to", c.relays())
	both := pipes{half: make(chan struct{}), over: make(chan struct{})}
	var ways, watch sync.WaitGroup
	ways.Go(func() { e.pipe(to, c, &both) })
	ways.Go(func() { e.pipe(c, to, &both) })
	watch.Go(func() {
		if both.drained() {
			_ = to.Close()
			_ = c.Close()
		}
	})
	ways.Wait()
	close(both.over)
	watch.Wait()
}

// pipes are the two directions of a relayed connection.
type pipes struct {
	moved atomic.Int64  // bytes, both directions together
	half  chan struct{} // closed when one direction has ended
	over  chan struct{} // closed when both have
	once  sync.Once     // closes half
}

// drained waits until one direction has ended and no more bytes come, and returns true; or false once both have ended.
// A member that is stopped does not see that a connection to it ends, and would hold it for as long as it is.
func (p *pipes) drained() bool {
	select {
	case <-p.half:
	case <-p.over:
		return false
	}
	for was := int64(-1); was != p.moved.Load(); {
		was = p.moved.Load()
		select {
		case <-time.After(relayDrain):
		case <-p.over:
			return false
		}
	}
	return true
}

// relays returns the member that an accepted connection is relayed to, "" if none.
func (c *Conn) relays() ag.ReplicaID {
	if id := c.relayTo.Load(); id != nil {
		return *id
	}
	return ""
}

// relayTarget reads the name of the wanted member and connects to its address in the configuration, never to one that
// the caller names.
func (e *Endpoint) relayTarget(ctx context.Context, c *Conn) (net.Conn, error) {
	var n [1]byte
	if _, err := io.ReadFull(c, n[:]); err != nil {
		return nil, err
	}
	name := make([]byte, n[0])
	if len(name) > maxMemberName {
		return nil, errors.New("no member has so long a name")
	}
	if _, err := io.ReadFull(c, name); err != nil {
		return nil, err
	}
	id := ag.ReplicaID(name)
	c.relayTo.Store(&id)
	if err := e.permit(c); err != nil {
		return nil, err
	}
	addr, _ := e.cfg.Member(id)
	d := net.Dialer{Timeout: relayConnect, KeepAliveConfig: keepAlive}
	to, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if err := tune(to, ClassRelay); err != nil {
		return nil, errors.Join(err, to.Close())
	}
	return to, nil
}

// mayRelay returns an error if a member may not be connected with the member that it named.
func (e *Endpoint) mayRelay(c *Conn) error {
	id := c.relays()
	if id == "" {
		return nil // it is of another class, or has not named one yet
	}
	if e.cfg.Member == nil {
		return errors.New("this node relays nothing")
	}
	if _, member := e.cfg.Member(id); !member || id == c.peer.ID || id == e.cfg.Node.Identity.ID {
		return fmt.Errorf("%s is no other member of this group", id)
	}
	return nil
}

// pipe copies one direction and forwards its end.
func (e *Endpoint) pipe(to, from net.Conn, both *pipes) {
	defer both.once.Do(func() { close(both.half) })
	_, err := io.CopyBuffer(counted{to, []*atomic.Int64{&e.relayCache.sent, &both.moved}}, struct{ io.Reader }{from}, make([]byte, relayBuffer))
	if half, ok := to.(interface{ CloseWrite() error }); err == nil && ok && half.CloseWrite() == nil {
		return
	}
	_ = to.Close()
	_ = from.Close()
}

// counted counts what is written.
type counted struct {
	io.Writer
	in []*atomic.Int64
}

func (c counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	for _, sum := range c.in {
		sum.Add(int64(n))
	}
	return n, err
}
