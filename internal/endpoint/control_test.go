package endpoint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
	"github.com/coteriedb/coterie/internal/endpoint/certs"
	"github.com/coteriedb/coterie/internal/lib/fail"
)

// controlPair serves a with some methods, and returns the Control of b and a as a replica.
func controlPair(t *testing.T, rules *allow) (b *Control, to ag.Replica, a *Endpoint) {
	t.Helper()
	ca := newTestCA(t, groupA)
	a = start(t, Config{Node: newTestNode(t, ca, "a"), Authorize: rules.authorize}, func(e *Endpoint) {
		c := NewControl(e)
		c.Handle("greet", func(_ context.Context, peer certs.Identity, body json.RawMessage) (any, error) {
			var name string
			if err := json.Unmarshal(body, &name); err != nil {
				return nil, &RemoteError{CodeMalformed, err.Error()}
			}
			return fmt.Sprintf("hello %s at %s", name, peer.ID), nil
		})
		c.Handle("fail", func(context.Context, certs.Identity, json.RawMessage) (any, error) {
			return nil, fmt.Errorf("seal: %w", &RemoteError{"sealed_already", "epoch 7 is sealed"})
		})
		c.Handle("plain", func(context.Context, certs.Identity, json.RawMessage) (any, error) { return nil, errors.New("no luck") })
		c.Handle("kind", func(context.Context, certs.Identity, json.RawMessage) (any, error) {
			return nil, fmt.Errorf("seal: %w", fail.Numberedf(41142, "it would lose data").WithHint("wait"))
		})
		c.Handle("panic", func(context.Context, certs.Identity, json.RawMessage) (any, error) { panic("a bug") })
		c.Handle("big", func(context.Context, certs.Identity, json.RawMessage) (any, error) {
			return strings.Repeat("x", 2*maxBody), nil
		})
		c.Handle("wait", func(ctx context.Context, _ certs.Identity, _ json.RawMessage) (any, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		c.Handle("nothing", func(context.Context, certs.Identity, json.RawMessage) (any, error) { return nil, nil })
	})
	b = NewControl(client(newTestNode(t, ca, "b")))
	t.Cleanup(b.Close)
	return b, ag.Replica{ID: "a", Endpoint: a.Addr().String()}, a
}

func TestCall(t *testing.T) {
	b, to, a := controlPair(t, new(allow))
	var got string
	for range 20 {
		if err := b.Call(within(t), to, "greet", "Ada <&>", &got); err != nil || got != "hello Ada <&> at b" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if n := len(a.Peers()); n != 1 {
		t.Errorf("%d connections for calls one after another", n)
	}
	if err := b.Call(within(t), to, "nothing", nil, nil); err != nil {
		t.Error(err)
	}
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			var got string
			want := fmt.Sprintf("hello %d at b", i)
			if err := b.Call(within(t), to, "greet", fmt.Sprint(i), &got); err != nil || got != want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func TestCallErrors(t *testing.T) {
	var rules allow
	b, to, a := controlPair(t, &rules)
	for method, want := range map[string]RemoteError{
		"fail":    {"sealed_already", "epoch 7 is sealed"},
		"plain":   {CodeError, "no luck"},
		"kind":    {"API_REFUSED", "it would lose data (wait)"},
		"panic":   {CodeInternal, "the method failed by a bug; the node's log has the details"},
		"missing": {CodeUnknownMethod, `no method "missing" here`},
		"big":     {CodeTooLarge, fmt.Sprintf("the result has %d bytes, at most %d are sent", 2*maxBody+2, maxBody-64)},
	} {
		var re *RemoteError
		if err := b.Call(within(t), to, method, 1, nil); !errors.As(err, &re) || *re != want {
			t.Errorf("%s: %v", method, err)
		}
	}
	if err := b.Call(within(t), to, "greet", strings.Repeat("x", maxBody), nil); err == nil || !strings.Contains(err.Error(), "at most") {
		t.Errorf("a huge request was sent: %v", err)
	}
	if err := b.Call(context.Background(), to, "greet", "x", nil); err == nil || !strings.Contains(err.Error(), "deadline") {
		t.Errorf("a call without deadline was made: %v", err)
	}
	if err := b.Call(within(t), ag.Replica{ID: "c", Endpoint: to.Endpoint}, "greet", "x", nil); !errors.Is(err, ErrIdentity) {
		t.Errorf("another node was called: %v", err)
	}
	var number int
	if err := b.Call(within(t), to, "greet", "x", &number); err == nil {
		t.Error("a result of another type was taken")
	}

	// A connection that is open already does not outlive the right to it, even before CloseUnauthorised.
	rules.refuse("b")
	var re *RemoteError
	if err := b.Call(within(t), to, "greet", "x", nil); !errors.As(err, &re) || re.Code != CodeRefused {
		t.Errorf("got %v", err)
	}
	a.CloseUnauthorised()
	var refused *RefusedError
	waitFor(t, "the pooled connections to be dropped", func() bool {
		return errors.As(b.Call(within(t), to, "greet", "x", nil), &refused)
	})
}

func TestCallDeadline(t *testing.T) {
	b, to, a := controlPair(t, new(allow))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := b.Call(ctx, to, "wait", nil, nil)
	var re *RemoteError
	if !errors.Is(err, context.DeadlineExceeded) && !(errors.As(err, &re) && re.Code == CodeDeadline) {
		t.Fatalf("got %v", err)
	}
	b.Close()
	waitFor(t, "the method to end at the other node", func() bool { return len(a.Peers()) == 0 })
}

// TestCallerThatLeavesIsNotAnswered holds that a node says nothing to a caller that has closed its side, not even while
// that caller still reads: "context canceled" would look like an error of the method.
func TestCallerThatLeavesIsNotAnswered(t *testing.T) {
	b, to, _ := controlPair(t, new(allow))
	conn, err := b.e.Dial(within(t), to.Endpoint, ClassControl, to.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nnull"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*Conn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if said, err := io.ReadAll(conn); err != nil || len(said) > 0 {
		t.Errorf("a caller that has left was told %q, %v", said, err)
	}
}

// TestALateBodyIsAnswered holds that a caller which is there is told that its request did not arrive in time: the end
// of the connection would look like the death of the node.
func TestALateBodyIsAnswered(t *testing.T) {
	ca := newTestCA(t, groupA)
	a := start(t, Config{Node: newTestNode(t, ca, "a"), Authorize: new(allow).authorize}, func(e *Endpoint) {
		NewControl(e).bodyTime = 100 * time.Millisecond
	})
	b := NewControl(client(newTestNode(t, ca, "b")))
	t.Cleanup(b.Close)
	conn, err := b.e.Dial(within(t), a.Addr().String(), ClassControl, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "POST /greet HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nnu"); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("a caller whose body is late is not answered: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var r reply
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || r.Error == nil || r.Error.Code != CodeLate {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestServeEndsRunningCalls holds that the end of Serve cancels a method under way and waits for it (start checks
// that).
func TestServeEndsRunningCalls(t *testing.T) {
	b, to, a := controlPair(t, new(allow))
	failed := make(chan error, 1)
	ctx := within(t)
	go func() { failed <- b.Call(ctx, to, "wait", nil, nil) }()
	waitFor(t, "the call", func() bool { return len(a.Peers()) == 1 })
	cutPeer(a, "b")
	if err := <-failed; err == nil {
		t.Fatal("a cut call succeeded")
	}
}

// TestServeWaitsForMethods holds that Serve returns only after a slow method has ended.
func TestServeWaitsForMethods(t *testing.T) {
	noLeaks(t)
	ca := newTestCA(t, groupA)
	a := New(Config{Node: newTestNode(t, ca, "a"), Listen: "127.0.0.1:0", Authorize: new(allow).authorize})
	var entered, left atomic.Bool
	NewControl(a).Handle("linger", func(ctx context.Context, _ certs.Identity, _ json.RawMessage) (any, error) {
		entered.Store(true)
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond)
		left.Store(true)
		return nil, nil
	})
	if err := a.Listen(); err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Serve(serving); err != nil || !left.Load() {
			t.Errorf("Serve returned %v, before the method: %v", err, !left.Load())
		}
	})
	b := NewControl(client(newTestNode(t, ca, "b")))
	ctx := within(t)
	wg.Go(func() {
		if err := b.Call(ctx, ag.Replica{ID: "a", Endpoint: a.Addr().String()}, "linger", nil, nil); err == nil {
			t.Error("a cut call succeeded")
		}
	})
	waitFor(t, "the method", entered.Load)
	stop()
	wg.Wait()
	b.Close()
}

// rawRequest sends a request that Call would not send.
func rawRequest(t *testing.T, conn net.Conn, method string, body io.Reader) reply {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://x/"+method, body)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var r reply
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOversizeAndMalformedRequests(t *testing.T) {
	b, to, _ := controlPair(t, new(allow))
	for _, tc := range []struct {
		body io.Reader
		code string
	}{
		{bytes.NewReader(bytes.Repeat([]byte("1"), maxBody+1)), CodeTooLarge},
		{io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("1"), maxBody)), strings.NewReader("11")), CodeTooLarge}, // of unknown length
		{strings.NewReader("{"), CodeMalformed},
		{strings.NewReader(""), CodeMalformed},
	} {
		conn, err := b.e.Dial(within(t), to.Endpoint, ClassControl, "a")
		if err != nil {
			t.Fatal(err)
		}
		if r := rawRequest(t, conn, "greet", tc.body); r.Error == nil || r.Error.Code != tc.code {
			t.Errorf("got %+v, want %s", r.Error, tc.code)
		}
		_ = conn.Close()
	}
}

func TestPoolKeyRoundTrip(t *testing.T) {
	for _, addr := range []string{"10.0.0.1:5022", "[fd00::1]:5022", "db_1.example.org:5022"} {
		k := poolKey(addr, ag.ReplicaID("a_1"))
		if strings.ContainsAny(k, ":/@%[]") {
			t.Errorf("%q is no host name", k)
		}
	}
}
