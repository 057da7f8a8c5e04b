package link

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/lib/codec"
)

// TestOrder gives a link its frames in any order, some of them many times, as two legs and an attacker who replays may:
// every byte is passed on once and in order.
func TestOrder(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		var e codec.Encoder
		if err := e.Use([]codec.Encoding{{}, {Codec: codec.Zstd}, {Codec: codec.LZ4}}[r.IntN(3)]); err != nil {
			t.Fatal(err)
		}
		type sent struct {
			header
			body []byte
		}
		var frames []sent
		var want []byte
		for i := range 1 + r.IntN(60) {
			src := bytes.Repeat([]byte{byte(i), byte(r.Uint32())}, 1+r.IntN(2000))
			want = append(want, src...)
			b, err := e.Encode(src)
			if err != nil {
				t.Fatal(err)
			}
			h := header{kind: typeData, codec: b.Codec, first: b.First, length: len(b.Body), number: uint64(i), size: b.Size, crc: b.CRC}
			frames = append(frames, sent{h, bytes.Clone(b.Body)})
		}
		order := slices.Clone(frames)
		for range r.IntN(100) { // replays
			order = append(order, frames[r.IntN(len(frames))])
		}
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		c := newConn("0123456789abcdef", "p", Config{})
		var got []byte
		c.in.sink = func(b []byte) error { got = append(got, b...); return nil }
		for _, f := range order {
			if err := c.receive(f.header, bytes.Clone(f.body)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(got, want) || c.in.waiting != 0 || len(c.in.parked) != 0 {
			t.Fatalf("seed %d: %d bytes instead of %d, %d parked", seed, len(got), len(want), len(c.in.parked))
		}
		if n := int(c.in.doubles.Load()); n != len(order)-len(frames) {
			t.Errorf("seed %d: %d doubles, want %d", seed, n, len(order)-len(frames))
		}
	}
}

// TestFlood gives a link frames that no window allows.
func TestFlood(t *testing.T) {
	t.Parallel()
	c := newConn("0123456789abcdef", "p", Config{})
	body := make([]byte, codec.MaxRaw)
	var err error
	for i := uint64(1); err == nil && i < 1000; i++ { // 0 never comes
		err = c.receive(header{kind: typeData, length: len(body), size: len(body), number: i}, body)
	}
	if !errors.Is(err, errOrder) || c.in.waiting > window+2*maxPayload {
		t.Errorf("%d bytes parked, %v", c.in.waiting, err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	type step struct {
		m     measure
		main  string
		hedge bool
		say   string
	}
	lan := measure{trip: 200 * time.Microsecond, sent: 5000}
	far := measure{trip: 30 * time.Millisecond, sent: 5000}
	bad := measure{trip: 60 * time.Millisecond, sent: 500, lost: 9}
	one := measure{trip: 30 * time.Millisecond, sent: 200, lost: 1}
	blocked := bad
	blocked.udp = udpBlocked
	for _, c := range []struct {
		name   string
		prefer Preference
		steps  []step
	}{
		{"local network", PreferAuto, []step{{lan, TCP, false, "local network"}}},
		{"to lossy and back", PreferAuto, []step{
			{lan, TCP, false, ""}, {bad, QUIC, true, "lossy"}, {far, QUIC, true, ""}, {far, TCP, false, "not lossy"}, {lan, TCP, false, "local"},
		}},
		{"one loss is chance", PreferAuto, []step{{far, TCP, false, ""}, {one, TCP, false, ""}}},
		{"some loss keeps it", PreferAuto, []step{{bad, QUIC, true, ""}, {one, QUIC, true, ""}, {one, QUIC, true, ""}}},
		{"no UDP", PreferAuto, []step{{blocked, TCP, true, "UDP does not get through"}}},
		{"TCP asked for", PreferTCP, []step{{lan, TCP, false, "asked for"}, {bad, TCP, true, ""}}},
		{"QUIC asked for", PreferQUIC, []step{{lan, QUIC, false, "asked for"}, {blocked, TCP, false, "does not get through"}}},
	} {
		ch := chooser{prefer: c.prefer, calm: time.Second}
		for i, s := range c.steps {
			got := ch.next(time.Duration(1+i)*time.Second, s.m)
			if got.Main != s.main || got.Hedge != s.hedge || !strings.Contains(got.Reason, s.say) || !slices.Contains(got.Legs, got.Main) {
				t.Errorf("%s, step %d: %+v", c.name, i, got)
			}
		}
	}
}

// TestPredict asks what a link would be like.
func TestPredict(t *testing.T) {
	t.Parallel()
	near := Predict(PathStats{RTT: 200 * time.Microsecond, Congestion: "cubic"}, Options{PreferAuto, codec.Setting{Auto: true}})
	if near.Codec != "OFF" || len(near.Legs) != 1 || near.Legs[0] != (LegStatus{Kind: TCP, Congestion: "cubic", Main: true}) || near.Twice {
		t.Errorf("near: %+v", near)
	}
	bad := Predict(PathStats{60 * time.Millisecond, 1000, 10, "bbr", 20_000_000}, Options{PreferAuto, codec.Setting{Auto: true}})
	kinds := []string{}
	for _, l := range bad.Legs {
		kinds = append(kinds, l.Kind)
	}
	if bad.Codec != "ZSTD:1" || !slices.Equal(kinds, []string{TCP, TCP, QUIC, QUIC, QUIC}) || !bad.Legs[0].Main || bad.Legs[1].Main || !bad.Twice {
		t.Errorf("bad: %+v", bad)
	}
	if q := Predict(PathStats{RTT: time.Millisecond}, Options{PreferQUIC, codec.Setting{Auto: true}}); len(q.Legs) != 1 || q.Legs[0].Kind != QUIC || !q.Legs[0].Main {
		t.Errorf("QUIC: %+v", q)
	}
}

// TestFound remembers what a link carried while it was full, and no other time, and begins the next one with it.
func TestFound(t *testing.T) {
	t.Parallel()
	found := &Estimator{}
	c := newConn(strings.Repeat("0", 32), "far", Config{Bandwidth: found})
	for i, s := range []struct {
		least     int
		delivered uint64
		want      int64
	}{
		{bulkQueue, 1 << 20, 0}, // since when is not known
		{bulkQueue - 1, 9 << 20, 0},
		{bulkQueue, 1 << 20, 1 << 20},
		{bulkQueue, 2 << 20, 2 << 20},
		{bulkQueue, 1 << 20, 2<<20 - 1<<16},
		{0, 0, 2<<20 - 1<<16},
	} {
		c.busy = busy{least: s.least, delivered: s.delivered}
		c.measureRate(time.Duration(i+1) * time.Second)
		if got := found.Rate("far"); got != s.want {
			t.Errorf("step %d: %d, want %d", i, got, s.want)
		}
	}
	c.cost, c.under = bulkQueue, 100 // small frames in big buffers fill no link
	c.measureRate(7 * time.Second)
	c.busy.delivered = 1 << 10
	c.measureRate(8 * time.Second)
	if got, want := found.Rate("far"), int64(2<<20-1<<16); got != want {
		t.Errorf("a link that was not full: %d, want %d", got, want)
	}
	if found.Rate("near") != 0 || c.Status().Carried != found.Rate("far") {
		t.Errorf("near %d, status %d", found.Rate("near"), c.Status().Carried)
	}
	for i := range 2 * maxPeers {
		found.note(fmt.Sprint(i), 1)
	}
	if len(found.rates) > maxPeers {
		t.Errorf("%d peers are remembered", len(found.rates))
	}
	if s := Predict(PathStats{RTT: 60 * time.Millisecond, Congestion: "bbr", Carried: found.Rate("far")}, Options{PreferAuto, codec.Setting{Auto: true}}); s.Codec != "ZSTD:3" {
		t.Errorf("a link known to be slow begins with %s", s.Codec)
	}
	var none *Estimator
	none.note("far", 1)
	if none.Rate("far") != 0 {
		t.Error("nothing remembers something")
	}
}

// TestWavering moves a link around each limit: nothing changes between the two sides of a gap.
func TestWavering(t *testing.T) {
	t.Parallel()
	ch := chooser{prefer: PreferAuto, calm: 10 * time.Second}
	r := rand.New(rand.NewPCG(3, 3))
	var last choice
	changes := 0
	for i := range 1000 {
		m := measure{trip: 1600*time.Microsecond + time.Duration(r.IntN(350))*time.Microsecond, sent: 1000, lost: uint64(r.IntN(3))}
		got := ch.next(time.Duration(i)*time.Second, m)
		if i > 0 && !got.same(last) {
			changes++
		}
		last = got
	}
	if changes != 0 {
		t.Errorf("%d changes between the limits", changes)
	}
}

// TestHeadersThatAreRefused changes a header that a sender sends in one place at a time.
func TestHeadersThatAreRefused(t *testing.T) {
	t.Parallel()
	data := header{kind: typeData, codec: codec.Zstd, first: true, length: 10, number: 5, ack: 6, size: 600, crc: 1}
	for name, change := range map[string]func(h *header, b []byte){
		"":                         nil,
		"type 0":                   func(_ *header, b []byte) { b[0] = 0 },
		"a type that is not sent":  func(_ *header, b []byte) { b[0] = 8 },
		"a type of a later time":   func(_ *header, b []byte) { b[0] = typeShard + 1 },
		"another flag":             func(_ *header, b []byte) { b[2] = 2 },
		"a byte that is not zero":  func(_ *header, b []byte) { b[3] = 1 },
		"a block without a body":   func(h *header, _ []byte) { h.length = 0 },
		"a body that is too long":  func(h *header, _ []byte) { h.length = maxPayload + 1 },
		"an empty block":           func(h *header, _ []byte) { h.size = 0 },
		"a block that is too long": func(h *header, _ []byte) { h.size = codec.MaxRaw + 1 },
		"a long ping":              func(h *header, _ []byte) { h.kind, h.length = typePing, maxControl+1 },
	} {
		h := data
		if change != nil {
			change(&h, make([]byte, headerLen))
		}
		b := h.append(nil)
		if change != nil {
			change(&h, b)
		}
		if _, err := parseHeader(b); (err == nil) != (change == nil) || err != nil && !errors.Is(err, errFrame) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// FuzzHeader reads random headers: an accepted header is bounded, and encodes to the same bytes.
func FuzzHeader(f *testing.F) {
	f.Add(header{kind: typeData, codec: codec.Zstd, first: true, length: 10, number: 5, ack: 6, size: 600, crc: 1}.append(nil))
	f.Add(header{kind: typePing, length: pingLen}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		h, err := parseHeader(b)
		if err != nil {
			return
		}
		if h.length > maxPayload {
			t.Fatalf("%d bytes accepted", h.length)
		}
		if again := h.append(nil); !bytes.Equal(again, b[:headerLen]) {
			t.Fatalf("%x became %x", b[:headerLen], again)
		}
	})
}

// FuzzLeg plays a peer that sends anything on a leg. None of it may panic, block or be passed on unless it is a whole
// frame.
func FuzzLeg(f *testing.F) {
	ok := header{kind: typeData, length: 3, size: 3}.append(nil)
	f.Add(append(ok, "abc"...))
	f.Add(append(header{kind: typePing, length: pingLen}.append(nil), make([]byte, pingLen)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newConn("0123456789abcdef", "p", Config{})
		var got int
		c.in.sink = func(p []byte) error { got += len(p); return nil }
		l := newLeg(c, &canned{r: bytes.NewReader(b)})
		c.legs, c.main = []*leg{l}, l
		if err := l.read(); err == nil {
			t.Fatal("no end")
		}
		if got > 64*len(b)*1024 {
			t.Fatalf("%d bytes of %d", got, len(b))
		}
	})
}
