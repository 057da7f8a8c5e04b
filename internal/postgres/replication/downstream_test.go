package replication

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/ag"
)

func TestStreamStartup(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for _, tc := range []struct{ kind, name, replication, database string }{
		{KindWAL, "cot_s1_3", "true", ""}, {KindBackup, "cot_seed_s1", "true", ""}, {KindQuery, "cot_query_s1", "", "postgres"},
	} {
		_, w := b.open(Hello{Kind: tc.kind, Member: "s1", Epoch: 3})
		got := w.startup.params
		if got["user"] != "admin" || got["application_name"] != tc.name || got["replication"] != tc.replication || got["database"] != tc.database {
			t.Errorf("startup of kind %s: %v", tc.kind, got)
		}
	}
	waitFor(t, "three streams", func() bool { return len(b.d.Streams()) == 3 })
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *DownstreamConfig) {
		c.Verify = func(_ context.Context, h Hello) Answer {
			if h.CRC == 13 {
				return Answer{Code: CodeDiverged, Message: "other bytes"}
			}
			return Answer{OK: true}
		}
	})
	for _, tc := range []struct {
		name  string
		hello Hello
		code  string
	}{
		{"another member", Hello{Kind: KindWAL, Member: "s2", Epoch: 3}, CodeUnauthorised},
		{"unknown kind", Hello{Kind: "sql", Member: "s1", Epoch: 3}, CodeUnauthorised},
		{"old epoch", Hello{Kind: KindWAL, Member: "s1", Epoch: 2}, CodeEpoch},
		{"later epoch", Hello{Kind: KindQuery, Member: "s1", Epoch: 4}, CodeEpoch},
		{"diverged", Hello{Kind: KindWAL, Member: "s1", Epoch: 3, CRC: 13}, CodeDiverged},
	} {
		var refused *RefusedError
		if _, err := Open(t.Context(), b.dial().conn, tc.hello); !errors.As(err, &refused) || refused.Answer.Code != tc.code {
			t.Errorf("%s: %v, want code %s", tc.name, err, tc.code)
		}
	}
	b.d.SetEpoch(4, false)
	var refused *RefusedError
	if _, err := Open(t.Context(), b.dial().conn, Hello{Kind: KindWAL, Member: "s1", Epoch: 4}); !errors.As(err, &refused) || refused.Answer.Code != CodeNotPrimary {
		t.Errorf("not leading: %v", err)
	}
	b.d.SetEpoch(3, true) // may not go back
	if _, err := Open(t.Context(), b.dial().conn, walHello); err == nil {
		t.Error("the epoch went back")
	}
	if len(b.server.conns) != 0 {
		t.Error("a refused stream reached the server")
	}
}

// TestFeed: while an epoch is being sealed its candidate may stream WAL from a node that does not lead, and nothing
// else is allowed to any member.
func TestFeed(t *testing.T) {
	t.Parallel()
	var leads atomic.Bool
	leads.Store(true)
	b := newBench(t, func(c *DownstreamConfig) {
		c.Self = func() PrimaryFacts { return PrimaryFacts{Leading: leads.Load(), Epoch: 3, TLI: 2, Switch: 0x1000} }
	})
	old, _ := b.stream()
	leads.Store(false)
	refused := func(what string, h Hello) {
		t.Helper()
		var r *RefusedError
		if _, err := Open(t.Context(), b.dial().conn, h); !errors.As(err, &r) || r.Answer.Code != CodeNotPrimary {
			t.Errorf("%s: %v", what, err)
		}
	}
	b.d.Feed(4, "s2")
	if !ended(old.conn, old.r) {
		t.Error("a stream of the epoch before stays open")
	}
	refused("another member", Hello{Kind: KindWAL, Member: "s1", Epoch: 4})
	b.d.Feed(4, "s1")
	refused("an older epoch", Hello{Kind: KindWAL, Member: "s1", Epoch: 3})
	refused("a session", Hello{Kind: KindQuery, Member: "s1", Epoch: 4})
	refused("a backup", Hello{Kind: KindBackup, Member: "s1", Epoch: 4})
	p := b.dial()
	if a, err := Open(t.Context(), p.conn, Hello{Kind: KindWAL, Member: "s1", Epoch: 4}); err != nil || a.Epoch != 4 {
		t.Fatalf("the candidate: %+v, %v", a, err)
	}
	if w := b.server.next(t); w.startup.params["application_name"] != "cot_s1_4" {
		t.Errorf("startup: %v", w.startup.params)
	}
	b.d.Feed(3, "s2") // may not go back
	b.d.SetEpoch(4, false)
	if !ended(p.conn, p.r) {
		t.Error("the candidate's stream stays open")
	}
	refused("the candidate, afterwards", Hello{Kind: KindWAL, Member: "s1", Epoch: 4})
}

func TestBadHello(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	for _, bytes := range []string{"\xff\xff\xff\xff", "\x00\x00\x10\x01" + strings.Repeat(" ", 4097), "\x00\x00\x00\x04none"} {
		p := b.dial()
		p.write([]byte(bytes))
		if !ended(p.conn, p.r) {
			t.Errorf("a stream that begins with %.10q stays open", bytes)
		}
	}
	if _, err := Open(t.Context(), b.dial().conn, Hello{Member: ag.ReplicaID(strings.Repeat("x", maxHello))}); err == nil {
		t.Error("a hello of more than 4 KiB was sent")
	}
	slow := b.dial()
	slow.write([]byte("\x00\x00"))
	began := time.Now()
	if !ended(slow.conn, slow.r) || time.Since(began) < helloTimeout/2 {
		t.Errorf("a slow hello ended after %v", time.Since(began))
	}
}

func TestHoldFeedback(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	p, w := b.stream()
	p.write(plainStatus(status{1, 1, 1}))
	if f := w.mustRead(); f.status() != (status{1, 1, 1}) {
		t.Fatalf("server got %+v", f.status())
	}
	b.d.HoldFeedback(true)
	p.write(statusUpdate(status{2, 2, 2}))
	p.write(message('d', "h\x00\x00"))
	for i := range 1000 {
		p.write(plainStatus(status{ag.LSN(i + 3), ag.LSN(i + 3), 2}))
	}
	waitFor(t, "the held position to be known", func() bool { return b.d.Streams()[0].Flush == 1002 })
	if !w.silent() {
		t.Fatal("feedback reached the server while it was held")
	}
	b.d.HoldFeedback(false)
	if f := w.mustRead(); !f.isHotStandby() {
		t.Errorf("server got %+v, want the xmin", f)
	}
	if f := w.mustRead(); !f.isStatus() || f.status() != (status{1002, 1002, 2}) || !f.replyWanted() {
		t.Errorf("server got %+v, want the newest status and the wish for a reply", f)
	}
	p.write(plainStatus(status{2000, 2000, 2000}))
	if f := w.mustRead(); f.status().flush != 2000 {
		t.Errorf("server got %+v", f.status())
	}
}

// TestProve checks the order of the proof: two requests, the second after the first reply, among replies that the
// secondary asked for itself, and that the secondary sees only its own.
func TestProve(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	p, w := b.stream()
	p.write(statusUpdate(status{5, 4, 3}))
	if f := w.mustRead(); f.status() != (status{5, 4, 3}) {
		t.Fatalf("server got %+v", f.status())
	}
	proved := make(chan error, 1)
	go func() { proved <- b.d.Prove(context.Background(), []ag.ReplicaID{"s1"}) }()
	if f := w.mustRead(); !f.isStatus() || f.status() != (status{5, 4, 3}) || !f.replyWanted() {
		t.Fatalf("injected %+v", f)
	}
	w.write(keepalive(9)) // of its own accord, as an idle walsender does
	w.write(reply())      // to the secondary's
	if !w.silent() {
		t.Fatal("the second request came before the first reply")
	}
	w.write(reply(), walMessage(0x3000, 500))
	if f := w.mustRead(); !f.isStatus() || !f.replyWanted() {
		t.Fatalf("injected %+v", f)
	}
	if len(proved) > 0 {
		t.Fatal("proved by one reply")
	}
	w.write(reply())
	if err := <-proved; err != nil {
		t.Fatal(err)
	}
	w.write(message('c', ""))
	var got string
	for _, want := range []byte{'k', 'k', 'w', 0} {
		f := p.mustRead()
		got += string(f.kind)
		if f.sub() != want {
			t.Errorf("peer got %q/%q, want %q", f.kind, f.sub(), want)
		}
	}
	if got != "dddc" {
		t.Errorf("peer got %q, want dddc", got)
	}
	if s := b.d.Streams()[0]; s.Proven != 1 || s.Streaming {
		t.Errorf("stream = %+v", s)
	}
	if err := b.d.Prove(context.Background(), []ag.ReplicaID{"s1"}); !errors.Is(err, errNotStreaming) {
		t.Errorf("prove after the end of streaming: %v", err)
	}
}

// TestProveAcrossTimelines checks that a proof waits for a walreceiver that goes from one timeline to the next, and
// asks for both replies in the later streaming.
func TestProveAcrossTimelines(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	p, w := b.stream()
	proved := make(chan error, 1)
	go func() { proved <- b.d.Prove(context.Background(), []ag.ReplicaID{"s1"}) }()
	w.mustRead()
	w.write(reply())
	w.mustRead() // the second request, which is never answered
	w.write(message('c', ""))
	if f := p.mustRead(); f.kind != 'c' {
		t.Fatalf("the secondary got %q", f.kind)
	}
	w.write(message('W', "\x00\x00\x00"))
	for i := range 2 {
		if f := w.mustRead(); !f.isStatus() || !f.replyWanted() {
			t.Fatalf("injected %+v", f)
		}
		if len(proved) > 0 {
			t.Fatalf("proved by %d replies of the later streaming", i)
		}
		w.write(reply())
	}
	if err := <-proved; err != nil {
		t.Fatal(err)
	}
	if s := b.d.Streams()[0]; s.Proven != 1 || !s.Streaming {
		t.Errorf("stream = %+v", s)
	}
}

func TestProveFails(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	if err := b.d.Prove(t.Context(), []ag.ReplicaID{"s1"}); err == nil {
		t.Error("proved without a stream")
	}
	_, w := b.stream()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := b.d.Prove(ctx, []ag.ReplicaID{"s1"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no reply: %v", err)
	}
	proved := make(chan error, 1)
	go func() { proved <- b.d.Prove(context.Background(), []ag.ReplicaID{"s1"}) }()
	w.mustRead()
	w.mustRead()
	b.d.Drop("s1", "test")
	if err := <-proved; !errors.Is(err, errEnded) {
		t.Errorf("dropped: %v", err)
	}
}

// TestOneWalsender checks that a new stream of a member waits for the old one's end and row.
func TestOneWalsender(t *testing.T) {
	t.Parallel()
	row := make(chan struct{}, 1)
	row <- struct{}{}
	b := newBench(t, func(c *DownstreamConfig) {
		c.OldRowGone = func(ctx context.Context, m ag.ReplicaID) error {
			select {
			case <-row:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	p1, w1 := b.stream()
	p2 := b.dial()
	opened := make(chan error, 1)
	go func() {
		_, err := Open(context.Background(), p2.conn, walHello)
		opened <- err
	}()
	if !ended(w1.conn, w1.r) || !ended(p1.conn, p1.r) {
		t.Fatal("the old stream stays open")
	}
	select {
	case err := <-opened:
		t.Fatalf("joined while the old row was there (%v)", err)
	case <-b.server.conns:
		t.Fatal("connected while the old row was there")
	case <-time.After(100 * time.Millisecond):
	}
	row <- struct{}{}
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the new session", func() bool {
		s := b.d.Streams()
		return len(s) == 1 && s[0].Session == 2
	})
}

func TestSetEpochCloses(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	_, w := b.stream()
	_, q := b.open(Hello{Kind: KindQuery, Member: "s1", Epoch: 3})
	b.d.SetEpoch(3, true)
	waitFor(t, "both streams to outlive the same epoch", func() bool { return len(b.d.Streams()) == 2 })
	b.facts.Epoch = 4
	b.d.SetEpoch(4, true)
	if n := len(b.d.Streams()); n != 0 {
		t.Errorf("%d streams of the old epoch", n)
	}
	if !ended(w.conn, w.r) || !ended(q.conn, q.r) {
		t.Error("the server still has a connection")
	}
}

// TestEpochMovesDuringVerify checks that a stream judged in an epoch is not joined in the next.
func TestEpochMovesDuringVerify(t *testing.T) {
	t.Parallel()
	var b *bench
	b = newBench(t, func(c *DownstreamConfig) {
		c.Verify = func(context.Context, Hello) Answer {
			b.d.SetEpoch(4, true)
			return Answer{OK: true}
		}
	})
	if _, err := Open(t.Context(), b.dial().conn, walHello); err == nil {
		t.Error("joined a stream of an old epoch")
	}
}

// TestProbeAfterChanges checks that a shorter silence holds for a stream that is open.
func TestProbeAfterChanges(t *testing.T) {
	t.Parallel()
	const longer = 2 * time.Second
	b := newBench(t, func(c *DownstreamConfig) { c.ProbeAfter = longer })
	p, w := b.stream()
	w.write(walMessage(0x5000, 200))
	p.mustRead()
	b.d.SetProbeAfter(30 * time.Millisecond)
	p.mustRead() // the last probe by the longer one
	begin := time.Now()
	for range 5 {
		p.mustRead()
		p.write(plainStatus(status{1, 1, 1}))
		w.mustRead()
	}
	if took := time.Since(begin); took > 4*longer {
		t.Errorf("5 probes in %v", took)
	}
}

// TestLiveness checks that an idle stream is probed in both directions, and that a silent peer is given up.
func TestLiveness(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *DownstreamConfig) { c.ProbeAfter, c.DeadAfter = 300*time.Millisecond, 2*time.Second })
	p, w := b.stream()
	w.write(walMessage(0x5000, 200))
	if f := p.mustRead(); f.sub() != 'w' {
		t.Fatalf("peer got %q", f.sub())
	}
	for range 8 { // longer than DeadAfter, answered
		f := p.mustRead()
		if end, ok := f.walEnd(); !f.isKeepalive() || !f.replyWanted() || !ok || end != 0x5000 {
			t.Fatalf("peer got %+v, want a probe", f)
		}
		p.write(plainStatus(status{1, 1, 1}))
		w.mustRead()
	}
	if !ended(p.conn, p.r) || !ended(w.conn, w.r) {
		t.Error("a silent peer keeps its stream")
	}
}

// TestServerEnds checks that the peer gets all of the walsender's last words, with bytes of its own on the way.
func TestServerEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	p, w := b.stream()
	w.write(walMessage(1<<20, 100<<10), message('C', "COPY 0\x00"))
	_ = w.conn.Close()
	_, _ = p.conn.Write(plainStatus(status{1, 1, 1})) // on its way when the server ends
	for _, want := range []byte{'d', 'C'} {
		if f := p.mustRead(); f.kind != want {
			t.Errorf("peer got %q, want %q", f.kind, want)
		}
	}
	if !ended(p.conn, p.r) {
		t.Error("the stream stays open")
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	_, w := b.stream()
	early := b.dial() // has not even said hello
	waitFor(t, "both connections to be taken", func() bool {
		b.d.mu.Lock()
		defer b.d.mu.Unlock()
		return len(b.d.streams) == 2
	})
	b.d.Close()
	if !ended(w.conn, w.r) || !ended(early.conn, early.r) {
		t.Error("a stream outlives Close")
	}
	select {
	case <-b.d.Changed():
	default:
		t.Error("nobody was told")
	}
}

// Each of several readers gets the next move, once.
func TestMoved(t *testing.T) {
	d := NewDownstream(DownstreamConfig{})
	x, y := d.Moved(), d.Moved()
	d.signal()
	<-x
	<-y
	z := d.Moved()
	select {
	case <-z:
		t.Error("heard of a move that was before")
	default:
	}
	d.signal()
	<-z
}
