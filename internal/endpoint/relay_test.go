package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/admission"
)

// street stands between a node and another one's port: it accepts, and passes bytes on while it is open. Closed, it is
// a network that drops everything.
type street struct {
	l    net.Listener
	open atomic.Bool

	mu   sync.Mutex
	seen bytes.Buffer // bytes towards the port
}

func newStreet(t *testing.T, to net.Addr, open bool) *street {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &street{l: l}
	w.open.Store(open)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			keep(in)
			if !w.open.Load() {
				continue
			}
			out, err := net.Dial("tcp", to.String())
			if err != nil {
				t.Error(err)
				return
			}
			keep(out)
			wg.Go(func() { _, _ = io.Copy(io.MultiWriter(out, w), in); _ = out.Close() })
			wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return w
}

func (w *street) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen.Write(p)
}

func (w *street) saw(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return bytes.Contains(w.seen.Bytes(), b)
}

// triangle is two nodes that cannot reach each other, and a witness that reaches both.
type triangle struct {
	a, b, w     *Endpoint
	direct      *street // as a sees b
	beyond      *street // as the witness sees b
	gone        atomic.Bool
	atWitness   *allow
	controlOf   map[ag.ReplicaID]*Control
	silentRelay atomic.Bool
}

func newTriangle(t *testing.T) *triangle {
	t.Helper()
	ca := newTestCA(t, groupA)
	x := &triangle{atWitness: new(allow), controlOf: map[ag.ReplicaID]*Control{}}
	control := func(id ag.ReplicaID) func(*Endpoint) { return func(e *Endpoint) { x.controlOf[id] = NewControl(e) } }
	handlers := map[Class]Handler{ClassWAL: echo, ClassHeart: echo}
	x.b = startBeside(t, Config{Node: newTestNode(t, ca, "b"), Handlers: handlers}, control("b"))
	x.direct, x.beyond = newStreet(t, x.b.Addr(), false), newStreet(t, x.b.Addr(), true)
	witness, err := certs.CreateNode(t.TempDir(), ca, certs.Identity{Group: ca.Group, Kind: certs.KindWitness, ID: "w"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x.w = startBeside(t, Config{Node: witness, Authorize: x.atWitness.authorize, Member: func(id ag.ReplicaID) (string, bool) {
		return x.beyond.l.Addr().String(), id == "a" || id == "w" || id == "b" && !x.gone.Load()
	}})
	x.a = startBeside(t, Config{Node: newTestNode(t, ca, "a"), Handlers: handlers, Relays: func(to ag.ReplicaID) []Relay {
		if x.silentRelay.Load() {
			return nil
		}
		return []Relay{{"w", x.w.Addr().String()}, {"x", "127.0.0.1:1"}}
	}}, control("a"))
	t.Cleanup(func() {
		for _, c := range x.controlOf {
			c.Close()
		}
	})
	return x
}

func (x *triangle) dial(t *testing.T, class Class) (*Conn, error) {
	t.Helper()
	c, err := x.a.DialBy(within(t), KindTCP, x.direct.l.Addr().String(), class, "b")
	if err == nil {
		t.Cleanup(c.abort)
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// Two nodes that cannot reach each other talk by way of the witness, which sees their addresses and none of their data.
// When the direct path is back, a relayed connection ends as a lost one does, and the next one is direct.
func TestRelay(t *testing.T) {
	t.Parallel()
	x := newTriangle(t)
	c, err := x.dial(t, ClassWAL)
	if err != nil {
		t.Fatal(err)
	}
	if c.Via() != "w" || c.Peer().ID != "b" || c.Kind() != KindTCP || c.ConnectionState().NegotiatedProtocol != ClassWAL.relayedProto() {
		t.Errorf("%s by way of %q", c.Peer().ID, c.Via())
	}
	secret := bytes.Repeat([]byte("nobody may read this "), 50_000)
	go func() { _, _ = c.Write(secret) }()
	got := make([]byte, len(secret))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, secret) {
		t.Fatalf("what came back differs: %v", err)
	}
	if x.beyond.saw([]byte("nobody may read this")) || !x.beyond.saw([]byte{0x17, 0x03, 0x03}) {
		t.Error("the relay passed on what it can read, or no TLS")
	}
	waitFor(t, "what was relayed is counted", func() bool { return x.w.Relayed().Bytes >= int64(2*len(secret)) })
	if r := x.w.Relayed(); r.Open != 1 || r.Total != 1 {
		t.Errorf("counted: %+v", r)
	}
	if again, err := x.dial(t, ClassControl); err != nil || again.Via() != "w" {
		t.Errorf("once it is known that a member is far: %v", err)
	}
	x.direct.open.Store(true)
	_, err = c.Read(got)
	if !errors.Is(err, errDirect) || errors.Is(err, net.ErrClosed) {
		t.Errorf("a relayed stream whose direct path is back: %v", err)
	}
	if c, err := x.dial(t, ClassWAL); err != nil || c.Via() != "" {
		t.Errorf("after that: %v", err)
	}
}

// TestAddressOfARelay holds that a member which comes by way of another one does not make the relay's address one of
// members: it would keep the places of members after the relay was removed.
func TestAddressOfARelay(t *testing.T) {
	t.Parallel()
	x := newTriangle(t)
	c, err := x.dial(t, ClassWAL)
	if err != nil || c.Via() != "w" {
		t.Fatal(err)
	}
	roundTrip(t, c)
	key := admission.Key(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if x.b.handshakes.rate.Known(key) {
		t.Error("the address of the relay is known as a member's")
	}
	x.direct.open.Store(true)
	waitFor(t, "the address to be known by a direct connection", func() bool { return x.b.handshakes.rate.Known(key) })
}

// A relayed connection goes back to the direct path also when that is another one than at first: the member has moved.
func TestRelayToAMemberThatMoved(t *testing.T) {
	t.Parallel()
	x := newTriangle(t)
	if _, err := x.dial(t, ClassWAL); err != nil {
		t.Fatal(err)
	}
	x.direct = newStreet(t, x.b.Addr(), false)
	c, err := x.dial(t, ClassWAL)
	if err != nil || c.Via() != "w" {
		t.Fatalf("it is relayed at its new address: %v", err)
	}
	x.direct.open.Store(true)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errDirect) {
		t.Errorf("a relayed stream whose direct path is back: %v", err)
	}
}

// A member that is stopped takes connections and says nothing, nor does it see that they end. The relay does not keep
// what was given up: else its places would be taken, and the next pair of members would get none.
func TestRelayToAStoppedMember(t *testing.T) {
	t.Parallel()
	x := newTriangle(t)
	x.beyond.open.Store(false)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if _, err := x.a.dialRelay(ctx, Relay{"w", x.w.Addr().String()}, ClassWAL, "b"); err == nil {
			t.Error("a member that says nothing is reached")
		}
		cancel()
	}
	if r := x.w.Relayed(); r.Total != 3 {
		t.Errorf("counted: %+v", r)
	}
	waitFor(t, "the relay to end them", func() bool { return x.w.Relayed().Open == 0 })
	x.beyond.open.Store(true)
	c, err := x.dial(t, ClassWAL)
	if err != nil || c.Via() != "w" {
		t.Fatalf("once the member goes on: %v", err)
	}
	roundTrip(t, c)
}

// A member that leaves loses the connections relayed to it and for it.
func TestRelayIsRevoked(t *testing.T) {
	t.Parallel()
	for what, revoke := range map[string]func(*triangle){
		"the far end":  func(x *triangle) { x.gone.Store(true) },
		"the near end": func(x *triangle) { x.atWitness.refuse("a") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			x := newTriangle(t)
			c, err := x.dial(t, ClassWAL)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, c)
			revoke(x)
			if n := x.w.CloseUnauthorised(); n != 1 {
				t.Errorf("%d streams were closed", n)
			}
			isCut(t, c)
			waitFor(t, "the pipe to end", func() bool { return x.w.Relayed().Open == 0 })
		})
	}
}

// A node that cannot be dialled, nor reached by a relay, is reached by its own dialling once it has been asked to dial.
func TestReverse(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, groupA)
	handlers := map[Class]Handler{ClassWAL: echo}
	member := func(id ag.ReplicaID) (*Endpoint, *Control) {
		var control *Control
		e := startBeside(t, Config{
			Node: newTestNode(t, ca, id), Handlers: handlers,
			Relays: func(ag.ReplicaID) []Relay { return nil },
			Member: func(ag.ReplicaID) (string, bool) { return "", false },
		}, func(e *Endpoint) { control = NewControl(e) })
		t.Cleanup(control.Close)
		control.Handle("ping", func(context.Context, certs.Identity, json.RawMessage) (any, error) { return nil, nil })
		return e, control
	}
	a, _ := member("a")
	b, calls := member("b")
	closed := newStreet(t, b.Addr(), false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pinging sync.WaitGroup
	defer pinging.Wait()
	defer cancel()
	pinging.Go(func() {
		for ctx.Err() == nil {
			short, done := context.WithTimeout(ctx, patience)
			if err := calls.Call(short, ag.Replica{ID: "a", Endpoint: a.Addr().String()}, "ping", nil, nil); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			done()
			time.Sleep(20 * time.Millisecond)
		}
	})
	for range 3 {
		c, err := a.DialBy(within(t), KindTCP, closed.l.Addr().String(), ClassWAL, "b")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if c.Peer().ID != "b" || c.Via() != "" {
			t.Errorf("%s by way of %q", c.Peer().ID, c.Via())
		}
		roundTrip(t, c)
		defer c.abort()
	}
	served := 0
	for _, p := range b.Peers() {
		if p.Class == ClassWAL && p.Inbound && p.Identity.ID == "a" {
			served++
		}
	}
	if served != 3 {
		t.Errorf("%d streams of WAL are served on what was parked: %+v", served, b.Peers())
	}
	if n := cutPeer(b, "a"); n < 3 {
		t.Errorf("%d were closed", n)
	}
}

// Not relayed are heartbeats, and connections to strangers, to the caller itself and to a member that refuses them.
// Without a relay nothing is relayed.
func TestRelayRefusals(t *testing.T) {
	t.Parallel()
	x := newTriangle(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if _, err := x.a.Dial(ctx, x.direct.l.Addr().String(), ClassHeart, "b"); err == nil {
		t.Error("heartbeats were relayed")
	}
	for _, to := range []ag.ReplicaID{"a", "w", "z"} {
		var refused *RefusedError
		if _, err := x.a.dialRelay(within(t), Relay{"w", x.w.Addr().String()}, ClassWAL, to); !errors.As(err, &refused) || refused.Class != ClassRelay {
			t.Errorf("a relay to %s: %v", to, err)
		}
	}
	began := time.Now()
	if _, err := x.a.DialBy(within(t), KindTCP, "127.0.0.1:1", ClassWAL, "b"); err == nil || x.w.Relayed().Total != 0 {
		t.Errorf("what refuses connections was relayed to, after %v: %v", time.Since(began), err)
	}
	if _, err := x.b.dialRelay(within(t), Relay{"a", x.a.Addr().String()}, ClassWAL, "w"); err == nil {
		t.Error("a node without a record relays")
	}
	x.silentRelay.Store(true)
	short, done := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer done()
	if _, err := x.a.Dial(short, x.direct.l.Addr().String(), ClassWAL, "b"); err == nil {
		t.Error("a stream came about without any path")
	}
}
