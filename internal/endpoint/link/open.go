package link

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/coteriedb/coterie/internal/lib/codec"
)

const (
	protocol    = 1
	maxOpening  = 4 << 10
	openTimeout = 5 * time.Second
	patience    = time.Second // time that the first transport has before the other one is tried too
)

// opening is the first message on a leg, from the dialling side; opened is the answer.
type opening struct {
	Protocol int        `json:"protocol"`
	Link     string     `json:"link"`
	New      bool       `json:"new,omitempty"`
	Main     bool       `json:"main,omitempty"`
	Received uint64     `json:"received,omitempty"`
	Codecs   []codec.ID `json:"codecs"`
	Shards   bool       `json:"shards,omitempty"` // are understood
}

type opened struct {
	OK       bool       `json:"ok"`
	Message  string     `json:"message,omitempty"`
	Received uint64     `json:"received,omitempty"`
	Codecs   []codec.ID `json:"codecs"`
	Shards   bool       `json:"shards,omitempty"`
}

// RefusedError is the other side's refusal of a leg.
type RefusedError struct{ Message string }

// Error returns the reason why the leg was refused.
func (e *RefusedError) Error() string { return "the other side refused the leg: " + e.Message }

func writeMessage(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readMessage(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxOpening {
		return fmt.Errorf("a message of %d bytes is longer than %d", n, maxOpening)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// Hub is the accepting side of all links of a node.
type Hub struct {
	// Serve is given each new link. The link ends when Serve returns.
	Serve func(ctx context.Context, c *Conn)
	// Configure returns the configuration of a link with that peer; called once per link.
	Configure func(peer string) Config

	mu     sync.Mutex
	closed bool
	links  map[string]*Conn
	wg     sync.WaitGroup
}

// Handle serves a leg of an authenticated peer until the leg ends. The end of ctx ends the leg and its link: it means
// that the peer is no longer allowed.
func (h *Hub) Handle(ctx context.Context, peer string, t Transport) error {
	_ = t.SetDeadline(time.Now().Add(openTimeout))
	var o opening
	if err := readMessage(t, &o); err != nil {
		return fmt.Errorf("read the opening of a leg: %w", err)
	}
	c, fresh, refusal := h.find(peer, o)
	if refusal != "" {
		return errors.Join(&RefusedError{refusal}, writeMessage(t, opened{Message: refusal}))
	}
	if fresh {
		c.known, c.shards = o.Codecs, o.Shards
		defer h.begin(c)
	}
	if err := writeMessage(t, opened{OK: true, Received: c.next.Load(), Codecs: codec.Known(), Shards: true}); err != nil {
		return err
	}
	_ = t.SetDeadline(time.Time{})
	serve, err := c.attach(t, o.Received, o.Main)
	if err != nil {
		return err
	}
	if fresh {
		h.begin(c)
	}
	return serve(ctx)
}

// find returns the link that a leg belongs to.
func (h *Hub) find(peer string, o opening) (c *Conn, fresh bool, refusal string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id, err := hex.DecodeString(o.Link)
	known := h.links[o.Link]
	switch {
	case h.closed:
		return nil, false, "this node is stopping"
	case o.Protocol != protocol:
		return nil, false, fmt.Sprintf("protocol %d is not spoken here", o.Protocol)
	case err != nil || len(id) != 16:
		return nil, false, "no such link"
	case o.New && known == nil:
		c = newConn(o.Link, peer, h.Configure(peer))
		if h.links == nil {
			h.links = make(map[string]*Conn)
		}
		h.links[o.Link] = c
		return c, true, ""
	case known != nil && known.peer == peer && !o.New:
		return known, false, ""
	}
	return nil, false, "no such link"
}

// begin starts the life of a link; a second call does nothing.
func (h *Hub) begin(c *Conn) {
	if !c.begun.CompareAndSwap(false, true) {
		return
	}
	h.wg.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c.wg.Go(func() { c.live(nil) })
		c.wg.Go(func() {
			<-c.over
			cancel()
		})
		h.Serve(ctx, c)
		_ = c.Close()
		c.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.links, c.id)
	})
}

// Links returns the accepted links.
func (h *Hub) Links() []*Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*Conn
	for _, c := range h.links {
		all = append(all, c)
	}
	return all
}

// Close ends every link, waits for them, and refuses new ones.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	for _, c := range h.Links() {
		_ = c.Close()
	}
	h.wg.Wait()
}

// Dialer opens links to one peer, one after the other, and keeps between them what it learnt about the path.
type Dialer struct {
	Config
	Peer   string
	Prefer func() Preference // asked every heartbeat; nil: AUTO
	Calm   time.Duration     // freedom from loss after which a link does not count as lossy any more; default 30 s
	// Open opens a leg of a kind. Final reports whether an error of Open is permanent.
	Open  func(ctx context.Context, kind string) (Transport, error)
	Final func(error) bool

	mu      sync.Mutex // guards choose
	choose  *chooser
	udpDead time.Time
}

// Dial opens a link.
func (d *Dialer) Dial(ctx context.Context) (*Conn, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if d.choose == nil {
		d.choose = &chooser{prefer: d.prefer(), calm: cmp.Or(d.Calm, 30*time.Second)}
	}
	d.mu.Unlock()
	c := newConn(hex.EncodeToString(id), d.Peer, d.Config)
	t, err := d.first(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.join(ctx, c, t, true, true); err != nil {
		c.end(err, "")
		c.Wait()
		return nil, err
	}
	c.begun.Store(true)
	c.wg.Go(func() { c.live(d) })
	return c, nil
}

// first opens the first leg of a link: the preferred transport, and after a while the other one beside it. A refused
// TCP connection means that the peer does not run, so the other transport is not tried.
func (d *Dialer) first(ctx context.Context) (Transport, error) {
	kinds := []string{TCP, QUIC}
	switch d.prefer() {
	case PreferQUIC:
		kinds = []string{QUIC, TCP}
	case PreferTCP:
		kinds = kinds[:1]
	default:
	}
	type result struct {
		t   Transport
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result, len(kinds))
	start := func(kind string) {
		t, err := d.Open(ctx, kind)
		results <- result{t, err}
	}
	running := 1
	go start(kinds[0])
	late := time.NewTimer(patience)
	defer late.Stop()
	var errs error
	for next := 1; ; {
		select {
		case r := <-results:
			running--
			if r.err == nil {
				go discard(running, func() net.Conn { return (<-results).t })
				return r.t, nil
			}
			errs = errors.Join(errs, r.err)
			if d.final(r.err) || errors.Is(r.err, syscall.ECONNREFUSED) || errors.Is(r.err, context.Canceled) || next == len(kinds) && running == 0 {
				go discard(running, func() net.Conn { return (<-results).t })
				return nil, errs
			}
		case <-late.C:
		}
		if next < len(kinds) {
			running++
			go start(kinds[next])
			next++
		}
	}
}

// discard closes connections that came too late.
func discard(n int, next func() net.Conn) {
	for range n {
		if t := next(); t != nil {
			_ = t.Close()
		}
	}
}

func (d *Dialer) prefer() Preference {
	if d.Prefer == nil {
		return PreferAuto
	}
	return cmp.Or(d.Prefer(), PreferAuto)
}

func (d *Dialer) final(err error) bool { return d.Final != nil && d.Final(err) }

// join makes a transport a leg of the link.
func (d *Dialer) join(ctx context.Context, c *Conn, t Transport, fresh, main bool) error {
	stop := context.AfterFunc(ctx, func() { _ = t.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = t.SetDeadline(time.Now().Add(openTimeout))
	o := opening{Protocol: protocol, Link: c.id, New: fresh, Main: main, Received: c.next.Load(), Codecs: codec.Known(), Shards: true}
	var a opened
	err := writeMessage(t, o)
	if err == nil {
		err = readMessage(t, &a)
	}
	if err == nil && !a.OK {
		err = &RefusedError{a.Message}
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err == nil {
		_ = t.SetDeadline(time.Time{})
		if fresh {
			c.known, c.shards = a.Codecs, a.Shards
		}
		var serve func(context.Context) error
		if serve, err = c.attach(t, a.Received, main); err == nil {
			c.wg.Go(func() { _ = serve(context.Background()) })
			return nil
		}
	}
	_ = t.Close()
	return fmt.Errorf("open a leg: %w", err)
}
