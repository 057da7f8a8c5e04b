package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/endpoint/certs"
)

func TestStreamBetweenMembers(t *testing.T) {
	ca := newTestCA(t, groupA)
	b := newTestNode(t, ca, "b")
	var seen atomic.Value
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{
		ClassWAL: func(ctx context.Context, peer certs.Identity, conn net.Conn) {
			seen.Store(peer)
			if c := conn.(*Conn); c.Pin() != b.Pin || c.Class() != ClassWAL || c.Peer() != peer {
				t.Errorf("conn says %v %s %s", c.Peer(), c.Class(), c.Pin())
			}
			echo(ctx, peer, conn)
		},
	}})
	from := client(b)
	conn := mustDial(t, from, e, ClassWAL, "a")
	roundTrip(t, conn)
	if seen.Load() != b.Identity {
		t.Errorf("the handler saw %v", seen.Load())
	}
	if c := conn.(*Conn); c.Peer().ID != "a" || c.Pin() != e.cfg.Node.Pin || c.ConnectionState().Version != tls.VersionTLS13 {
		t.Errorf("dialled %v", c.Peer())
	}
	in, out := e.Peers(), from.Peers()
	if len(in) != 1 || !in[0].Inbound || in[0].Identity.ID != "b" || len(out) != 1 || out[0].Inbound || out[0].Class != ClassWAL {
		t.Errorf("peers: %v, %v", in, out)
	}
	if any := mustDial(t, from, e, ClassWAL, ""); any.(*Conn).Peer().ID != "a" {
		t.Error("a dial for any member found nobody")
	}
	if n := cutPeer(e, "b"); n != 2 {
		t.Errorf("%d closed", n)
	}
	isCut(t, conn)
}

func TestForeignGroupIsRefused(t *testing.T) {
	never := func(context.Context, certs.Identity, net.Conn) { t.Error("the handler was called") }
	e := start(t, Config{Node: newTestNode(t, newTestCA(t, groupA), "a"), Handlers: map[Class]Handler{ClassWAL: never, ClassEtcdPeer: never}})
	foreign := newTestNode(t, newTestCA(t, groupB), "b")
	if _, err := dial(t, client(foreign), e, ClassWAL, "a"); err == nil || !strings.Contains(err.Error(), "not of this group") {
		t.Errorf("the dialling side took a foreign group: %v", err)
	}
	// A dialling side that checks nothing, and whose authority pretends to be the group's.
	for _, n := range []*certs.Node{foreign, newTestNode(t, newTestCA(t, groupA), "b")} {
		for _, protos := range [][]string{{ClassWAL.proto()}, {protoHTTP}, nil} {
			raw, err := net.Dial("tcp", e.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			c := tls.Client(raw, &tls.Config{
				InsecureSkipVerify: true, NextProtos: protos,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return n.Certificate(), nil },
			})
			isCut(t, c)
			_ = c.Close()
		}
	}
}

func TestWrongIdentity(t *testing.T) {
	ca := newTestCA(t, groupA)
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{ClassWAL: echo}})
	_, err := dial(t, client(newTestNode(t, ca, "b")), e, ClassWAL, "c")
	if !errors.Is(err, ErrIdentity) {
		t.Fatalf("got %v", err)
	}
}

// TestAnswers holds that a member answers, also one that takes the node for none of the group, and nobody else does.
func TestAnswers(t *testing.T) {
	ca := newTestCA(t, groupA)
	asks := newTestNode(t, ca, "b")
	var rules allow
	rules.refuse("b")
	at := func(n *certs.Node) string {
		return start(t, Config{Node: n, Authorize: rules.authorize, Handlers: map[Class]Handler{ClassControl: echo}}).Addr().String()
	}
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Close() }()
	go func() {
		for c, err := open.Accept(); err == nil; c, err = open.Accept() {
			_ = c.Close()
		}
	}()
	brief := *ca
	brief.Life = time.Second
	expired := at(newTestNode(t, &brief, "a"))
	time.Sleep(brief.Life)
	for name, tt := range map[string]struct {
		addr    string
		answers bool
	}{
		"the member":                {at(newTestNode(t, ca, "a")), true},
		"one that has expired":      {expired, true},
		"another member":            {at(newTestNode(t, ca, "c")), false},
		"a member of another group": {at(newTestNode(t, newTestCA(t, groupB), "a")), false},
		"the authority's namesake":  {at(newTestNode(t, newTestCA(t, groupA), "a")), false},
		"an open port":              {open.Addr().String(), false},
		"nobody":                    {"127.0.0.1:1", false},
	} {
		if err := Answers(t.Context(), asks, tt.addr, "a"); (err == nil) != tt.answers {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, tt := range map[string]struct {
		node     *certs.Node
		namesake bool
	}{
		"of another authority of the group":        {newTestNode(t, newTestCA(t, groupA), "a"), true},
		"another member, of another authority":     {newTestNode(t, newTestCA(t, groupA), "c"), false},
		"of another group":                         {newTestNode(t, newTestCA(t, groupB), "a"), false},
		"another member, of the group's authority": {newTestNode(t, ca, "c"), false},
	} {
		if err := Answers(t.Context(), asks, at(tt.node), "a"); err == nil || errors.Is(err, ErrNamesake) != tt.namesake {
			t.Errorf("%s: %v", name, err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := Answers(soon, asks, silent(t), "a"); !errors.Is(err, ErrSilent) {
		t.Errorf("one that says nothing: %v", err)
	}
}

// silent returns an address at which connections are taken, and nothing is said.
func silent(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestRefusedByTheRecord(t *testing.T) {
	ca := newTestCA(t, groupA)
	var rules allow
	rules.refuse("b")
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Authorize: rules.authorize, Handlers: map[Class]Handler{ClassWAL: echo}})
	_, err := dial(t, client(newTestNode(t, ca, "b")), e, ClassWAL, "a")
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Peer.ID != "a" || refused.Class != ClassWAL || !strings.Contains(refused.Message, "not a member") {
		t.Fatalf("got %v", err)
	}
	waitFor(t, "the refused stream to go", func() bool { return len(e.Peers()) == 0 })
}

func TestRemovalCutsLiveStreams(t *testing.T) {
	ca := newTestCA(t, groupA)
	var rules allow
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Authorize: rules.authorize, Handlers: map[Class]Handler{ClassWAL: echo, ClassSQL: echo}})
	var trustA atomic.Bool
	trustA.Store(true)
	b := New(Config{Node: newTestNode(t, ca, "b"), Trust: func(peer certs.Identity, pin string) error {
		if !trustA.Load() || pin != e.cfg.Node.Pin {
			return fmt.Errorf("%s was removed", peer.ID)
		}
		return nil
	}})
	c := client(newTestNode(t, ca, "c"))
	wal, sql, keep := mustDial(t, b, e, ClassWAL, "a"), mustDial(t, b, e, ClassSQL, "a"), mustDial(t, c, e, ClassWAL, "a")
	if n := e.CloseUnauthorised(); n != 0 {
		t.Fatalf("%d closed without a reason", n)
	}
	rules.refuse("b")
	if n := e.CloseUnauthorised(); n != 2 {
		t.Fatalf("%d closed", n)
	}
	isCut(t, wal)
	isCut(t, sql)
	roundTrip(t, keep)

	// The same from the dialling side.
	rules.pardon("b")
	again := mustDial(t, b, e, ClassWAL, "a")
	trustA.Store(false)
	if n := b.CloseUnauthorised(); n != 3 { // the two that the other side cut have not been closed here
		t.Fatalf("%d closed", n)
	}
	isCut(t, again)
	if _, err := dial(t, b, e, ClassWAL, "a"); err == nil || !strings.Contains(err.Error(), "not trusted") {
		t.Fatalf("got %v", err)
	}
}

// TestStrangersLearnNothing holds that without a certificate no protocol but join leads anywhere, and that only TLS is
// answered.
func TestStrangersLearnNothing(t *testing.T) {
	never := func(context.Context, certs.Identity, net.Conn) { t.Error("the handler was called") }
	ca := newTestCA(t, groupA)
	e := start(t, Config{
		Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{ClassWAL: never, ClassControl: never, ClassEtcdPeer: never},
		Join: func(context.Context, string, func([]byte) bool, JoinRequest) (JoinGrant, error) {
			t.Error("a join was served")
			return JoinGrant{}, nil
		},
	})
	for _, protos := range [][]string{
		{ClassWAL.proto()},
		{ClassControl.proto()},
		{protoHTTP},
		nil,
		{"h2"},
		{"coterie-wal/2"},
		{"none"},
		{ClassJoin.proto(), ClassControl.proto()},
		{ClassControl.proto(), ClassJoin.proto()},
		{ClassJoin.proto(), protoHTTP},
	} {
		raw, err := net.Dial("tcp", e.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: protos})
		_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		isCut(t, c)
		_ = c.Close()
	}
	raw, err := net.Dial("tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_, _ = raw.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	_ = raw.SetDeadline(time.Now().Add(patience))
	if got, _ := io.ReadAll(raw); len(got) > 7 || len(got) > 0 && got[0] != 0x15 { // at most a TLS alert
		t.Errorf("plain text was answered with %q", got)
	}
}

func TestMemberMeetsUnknownProtocol(t *testing.T) {
	ca := newTestCA(t, groupA)
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{ClassWAL: echo}})
	b := newTestNode(t, ca, "b")
	if _, err := dial(t, client(b), e, ClassSeed, "a"); err == nil {
		t.Error("a class without handler was served")
	}
	for _, class := range []Class{ClassJoin, ClassEtcdPeer, "", "none", "wal2"} {
		if _, err := dial(t, client(b), e, class, "a"); err == nil {
			t.Errorf("class %q was dialled", class)
		}
	}
	for _, protos := range [][]string{{"coterie-wal/2"}, {"h2"}, {protoHTTP}, {ClassJoin.proto()}, nil} {
		raw, err := net.Dial("tcp", e.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: protos, Certificates: []tls.Certificate{*b.Certificate()}})
		isCut(t, c)
		_ = c.Close()
	}
}

// TestEtcdPeerTraffic holds that an HTTP client that knows only the certificate files, as etcd is, reaches the handler
// of the class.
func TestEtcdPeerTraffic(t *testing.T) {
	ca, dir := newTestCA(t, groupA), t.TempDir()
	if _, err := certs.CreateNode(dir, ca, certs.Identity{Group: groupA, Kind: certs.KindReplica, ID: "b"}, nil); err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }),
		ConnState: func(conn net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(conn.(*stream).closed)
			}
		},
	}
	t.Cleanup(func() { _ = srv.Close() })
	var rules allow
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Authorize: rules.authorize}, func(e *Endpoint) {
		e.handlers[ClassEtcdPeer] = func(ctx context.Context, _ certs.Identity, conn net.Conn) {
			s := &stream{Conn: conn.(*Conn), closed: make(chan struct{})}
			_ = srv.Serve(&oneStream{ctx: ctx, next: s})
			<-s.closed
		}
	})

	certFile, keyFile, caFile := certs.TLSFiles(dir)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	caPEM, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(caPEM)
	post := func(protos []string, h2 bool, certs ...tls.Certificate) error {
		tr := &http.Transport{TLSClientConfig: &tls.Config{Certificates: certs, RootCAs: pool, NextProtos: protos}, ForceAttemptHTTP2: h2}
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr, Timeout: patience}
		for range 3 {
			resp, err := c.Post("https://"+e.Addr().String()+"/raft", "text/plain", strings.NewReader("entry"))
			if err != nil {
				return err
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || string(body) != "entry" {
				return fmt.Errorf("got %q, %w", body, err)
			}
		}
		return nil
	}
	for name, err := range map[string]error{
		"no protocol":     post(nil, false, pair),
		"http/1.1":        post([]string{protoHTTP}, false, pair),
		"h2 and http/1.1": post(nil, true, pair),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := post(nil, false); err == nil {
		t.Error("a peer without certificate was served")
	}
	rules.refuse("b")
	if err := post(nil, false, pair); err == nil {
		t.Error("a removed member was served")
	}
}

func TestSlowHandshakeIsCut(t *testing.T) {
	e := start(t, Config{
		Node: newTestNode(t, newTestCA(t, groupA), "a"), HandshakeTimeout: 200 * time.Millisecond,
		Handlers: map[Class]Handler{ClassWAL: echo},
	})
	raw, err := net.Dial("tcp", e.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	began := time.Now()
	// A drip of bytes must not extend the time: the first four of a record's header, then nothing.
	_, _ = raw.Write([]byte{0x16, 3, 1, 2})
	isCut(t, raw)
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("cut after %v already", took)
	}
	waitFor(t, "the place to be free", func() bool { return e.handshakes.strangers.Taken() == 0 })
}

// TestHandshakeFlood holds that silent connections occupy a bounded number of places and do not keep members out.
func TestHandshakeFlood(t *testing.T) {
	ca := newTestCA(t, groupA)
	const limit = 4
	e := start(t, Config{Node: newTestNode(t, ca, "a"), MaxHandshakes: limit, HandshakeTimeout: 2 * patience, Handlers: map[Class]Handler{ClassWAL: echo}})
	var flood []net.Conn
	for range 3 * limit {
		raw, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).Dial("tcp", e.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = raw.Close() }()
		flood = append(flood, raw)
	}
	done := make(chan int)
	stop := make(chan struct{})
	go func() {
		most := 0
		for {
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(time.Millisecond):
				most = max(most, e.handshakes.strangers.Taken())
			}
		}
	}()
	conn := mustDial(t, client(newTestNode(t, ca, "b")), e, ClassWAL, "a")
	roundTrip(t, conn)
	close(stop)
	if most := <-done; most == 0 || most > limit {
		t.Errorf("%d handshakes at once", most)
	}
	isCut(t, flood[len(flood)-1])
}

// TestFloodOfOneAddressDelaysNobody opens some hundred connections a second from one address, of which none
// authenticates. Members of other addresses are served meanwhile as if there were no flood, whether they were met
// before or not.
func TestFloodOfOneAddressDelaysNobody(t *testing.T) {
	ca := newTestCA(t, groupA)
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{ClassControl: echo}})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
			for tick := time.NewTicker(5 * time.Millisecond); ; {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				raw, err := from.Dial("tcp", e.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				wg.Go(func() {
					defer func() { _ = raw.Close() }()
					_ = raw.SetReadDeadline(time.Now().Add(5 * time.Second))
					_, _ = raw.Read(make([]byte, 1))
				})
			}
		})
	}
	b, slowest := client(newTestNode(t, ca, "b")), time.Duration(0)
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		began := time.Now()
		c := mustDial(t, b, e, ClassControl, "a")
		slowest = max(slowest, time.Since(began))
		_ = c.Close()
	}
	close(stop)
	wg.Wait()
	t.Logf("the slowest of the member's connections took %v; %d of the flood got no place", slowest, e.handshakes.refused())
	if slowest > 1500*time.Millisecond || e.handshakes.refused() == 0 {
		t.Errorf("a member's connection took %v", slowest)
	}
}

func TestStreamsPerPeerAreLimited(t *testing.T) {
	ca := newTestCA(t, groupA)
	e := start(t, Config{Node: newTestNode(t, ca, "a"), MaxConns: map[Class]int{ClassWAL: 2}, Handlers: map[Class]Handler{ClassWAL: echo, ClassSeed: echo}})
	b, c := client(newTestNode(t, ca, "b")), client(newTestNode(t, ca, "c"))
	first := mustDial(t, b, e, ClassWAL, "a")
	mustDial(t, b, e, ClassWAL, "a")
	var refused *RefusedError
	if _, err := dial(t, b, e, ClassWAL, "a"); !errors.As(err, &refused) || !strings.Contains(refused.Message, "open already") {
		t.Fatalf("got %v", err)
	}
	mustDial(t, b, e, ClassSeed, "a")
	mustDial(t, c, e, ClassWAL, "a")
	_ = first.Close()
	waitFor(t, "a place", func() bool {
		_, err := dial(t, b, e, ClassWAL, "a")
		return err == nil
	})
}

func TestPanicEndsOneStream(t *testing.T) {
	ca := newTestCA(t, groupA)
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{
		ClassWAL:  echo,
		ClassSeed: func(context.Context, certs.Identity, net.Conn) { panic("a bug") },
	}})
	b := client(newTestNode(t, ca, "b"))
	wal := mustDial(t, b, e, ClassWAL, "a")
	isCut(t, mustDial(t, b, e, ClassSeed, "a"))
	roundTrip(t, wal)
}

// TestPanicBeforeAStreamIsAuthorised holds that a bug in the judgement of a connection ends that connection, too: by
// then the caller may be anybody.
func TestPanicBeforeAStreamIsAuthorised(t *testing.T) {
	ca := newTestCA(t, groupA)
	var boom atomic.Bool
	e := start(t, Config{Node: newTestNode(t, ca, "a"), Handlers: map[Class]Handler{ClassWAL: echo}, Authorize: func(certs.Identity, string, Class) error {
		if boom.Load() {
			panic("a bug")
		}
		return nil
	}})
	b := startBeside(t, Config{Node: newTestNode(t, ca, "b"), Handlers: map[Class]Handler{ClassWAL: echo}})
	wal := mustDial(t, b, e, ClassWAL, "a")
	boom.Store(true)
	for _, kind := range []string{KindTCP, KindQUIC} {
		if _, err := b.DialBy(within(t), kind, e.Addr().String(), ClassWAL, "a"); err == nil || errors.Is(err, ErrNoUDP) {
			t.Errorf("by %s: %v", kind, err)
		}
	}
	boom.Store(false)
	roundTrip(t, wal)
	roundTrip(t, mustDial(t, b, e, ClassWAL, "a"))
}

func TestEndOfServe(t *testing.T) {
	noLeaks(t)
	ca := newTestCA(t, groupA)
	other := start(t, Config{Node: newTestNode(t, ca, "b"), Handlers: map[Class]Handler{ClassWAL: echo}})
	entered, left := make(chan struct{}), make(chan struct{})
	e := New(Config{Node: newTestNode(t, ca, "a"), Listen: "127.0.0.1:0", Authorize: new(allow).authorize, Handlers: map[Class]Handler{
		ClassWAL: func(ctx context.Context, _ certs.Identity, _ net.Conn) { close(entered); <-ctx.Done(); close(left) },
	}})
	if err := e.Listen(); err != nil {
		t.Fatal(err)
	}
	taken := New(Config{Node: e.cfg.Node, Listen: e.Addr().String()})
	if err := taken.Serve(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a taken port was opened: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	in, out := mustDial(t, other, e, ClassWAL, "a"), mustDial(t, e, other, ClassWAL, "b")
	roundTrip(t, out)
	<-entered
	cancel()
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	select {
	case <-left:
	default:
		t.Error("Serve returned before its handler")
	}
	isCut(t, in)
	isCut(t, out)
	if _, err := dial(t, e, other, ClassWAL, "b"); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed endpoint dialled: %v", err)
	}
}

// TestDialWantsItsProtocol holds that a member that negotiates no protocol is not taken for one that serves the class.
func TestDialWantsItsProtocol(t *testing.T) {
	ca := newTestCA(t, groupA)
	a, b := newTestNode(t, ca, "a"), client(newTestNode(t, ca, "b"))
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*a.Certificate()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	served := make(chan struct{})
	go func() {
		defer close(served)
		if conn, err := l.Accept(); err == nil {
			_ = writeVerdict(conn, nil)
			_ = conn.Close()
		}
	}()
	if _, err := b.Dial(within(t), l.Addr().String(), ClassWAL, "a"); err == nil || !strings.Contains(err.Error(), "does not serve class wal") {
		t.Errorf("got %v", err)
	}
	<-served
}

// TestDialKeepsItsTime dials a peer that is silent after the handshake, and one that is silent from the start.
func TestDialKeepsItsTime(t *testing.T) {
	ca := newTestCA(t, groupA)
	a, b := newTestNode(t, ca, "a"), client(newTestNode(t, ca, "b"))
	for name, greet := range map[string]func(net.Conn){
		"silent": func(net.Conn) {},
		"no verdict": func(c net.Conn) {
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*a.Certificate()}, NextProtos: []string{ClassWAL.proto()}}).Handshake()
		},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		conns := make(chan net.Conn, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				greet(c)
			}
			conns <- c
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err = b.Dial(ctx, l.Addr().String(), ClassWAL, "a")
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		_ = (<-conns).Close()
		_ = l.Close()
	}
	if n := len(b.Peers()); n != 0 {
		t.Errorf("%d connections are still counted", n)
	}
}
