package seeding

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// samples are chunks as they occur: rows, text, what does not compress, and what is hardly there.
func samples() map[string][]byte {
	noise := make([]byte, chunkSize)
	_, _ = rand.Read(noise)
	half := bytes.Clone(noise)
	clear(half[chunkSize/2:])
	rows := bytes.Buffer{}
	for i := 0; rows.Len() < chunkSize; i++ {
		fmt.Fprintf(&rows, "%08d customer of the %d. warehouse, balance %d\x00", i, i%10, i*i)
	}
	return map[string][]byte{
		"rows": rows.Bytes()[:chunkSize], "noise": noise, "half": half, "short": []byte("x"), "empty": {}, "odd": rows.Bytes()[:100_003],
	}
}

func TestCodecsGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	for name, src := range samples() {
		for _, c := range []codec{{}, {kind: codecMinLZ}, {kind: codecLZ4}, {codecZstd, 1}, {codecZstd, 2}, {codecZstd, 3}, {codecZstd, 4}} {
			out, used := c.compress(make([]byte, 0, chunkSize+chunkSize/16), src)
			back, err := used.decompress(make([]byte, 0, chunkSize), out, len(src))
			if err != nil || !bytes.Equal(back, src) {
				t.Errorf("%s by %v (%v): %d bytes back of %d: %v", name, c, used, len(back), len(src), err)
			}
			if len(out) > len(src) {
				t.Errorf("%s by %v grew from %d to %d bytes", name, c, len(src), len(out))
			}
			if name == "rows" && c.kind != codecNone && len(out) > len(src)/2 {
				t.Errorf("%s by %v: %d of %d bytes", name, c, len(out), len(src))
			}
			if name == "noise" && used != codecNone {
				t.Errorf("noise was sent by %v", used)
			}
		}
	}
}

// FuzzDecompress: whatever arrives, unpacking ends within its room, with an error or with just as many bytes as were said.
func FuzzDecompress(f *testing.F) {
	src := samples()["odd"]
	for kind := codecNone; kind <= codecZstd; kind++ {
		out, used := codec{kind, 1}.compress(nil, src)
		f.Add(byte(used), out, len(src))
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte, want int) {
		if want < 0 || want > chunkSize || len(body) > maxFrame {
			return
		}
		out, err := codecKind(kind).decompress(make([]byte, 0, chunkSize), body, want)
		if err == nil && len(out) != want {
			t.Errorf("%d bytes where %d were said", len(out), want)
		}
	})
}

func TestParseCompression(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want string
		auto bool
	}{
		{"", "OFF", true},
		{"auto", "OFF", true},
		{"OFF", "OFF", false},
		{"lz4", "LZ4", false},
		{"ZSTD", "ZSTD:1", false},
		{"zstd:1", "ZSTD:1", false},
		{"ZSTD:9", "ZSTD:7", false},
		{"ZSTD:22", "ZSTD:11", false},
	} {
		got, auto, err := parseCompression(c.in)
		if err != nil || auto != c.auto || got.String() != c.want {
			t.Errorf("%q is %v (auto %v, error %v), want %s", c.in, got, auto, err, c.want)
		}
	}
	for _, bad := range []string{"gzip", "LZ4:1", "ZSTD:0", "ZSTD:23", "ZSTD:x", "AUTO:1"} {
		if _, _, err := parseCompression(bad); err == nil || !strings.Contains(err.Error(), "SEED_COMPRESSION") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestAutoFollowsLinkAndCPU gives the chooser links and processors and looks what it settles on.
func TestAutoFollowsLinkAndCPU(t *testing.T) {
	t.Parallel()
	type machine struct {
		link  float64 // bytes per second
		ratio map[codec]float64
		speed map[codec]float64 // bytes of files per second
	}
	s2, fast, better, off := codec{kind: codecMinLZ}, codec{codecZstd, 1}, codec{codecZstd, 2}, codec{}
	speed := map[codec]float64{s2: 900e6, fast: 250e6, better: 120e6, off: 3e9}
	for _, c := range []struct {
		name string
		m    machine
		want codec
	}{
		{"slow link", machine{12e6, map[codec]float64{s2: 3, fast: 5, better: 6, off: 1}, speed}, better},
		{"gigabit", machine{120e6, map[codec]float64{s2: 3, fast: 5, better: 6, off: 1}, speed}, s2},
		{"ten gigabit", machine{1.2e9, map[codec]float64{s2: 3, fast: 5, better: 6, off: 1}, speed}, off},
		{"noise", machine{12e6, map[codec]float64{s2: 1, fast: 1, better: 1, off: 1}, speed}, s2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ch, err := newChooser("AUTO", unlimited)
			if err != nil {
				t.Fatal(err)
			}
			now := time.Unix(0, 0)
			for range 400 {
				k, round := ch.pick()
				rate := min(c.m.link*c.m.ratio[k], c.m.speed[k])
				now = now.Add(time.Duration(chunkSize / rate * float64(time.Second)))
				ch.arrived(chunkSize, int(chunkSize/c.m.ratio[k]), round, now)
				ch.over(round)
			}
			if ch.now != c.want {
				t.Errorf("it settled on %s", ch.choice())
			}
		})
	}
}

func unlimited() int64 { return 0 }

// TestAutoUnderALimit: a limit is no slow link. It keeps the cheapest codec that brings what may come, and looks again when the limit changes.
func TestAutoUnderALimit(t *testing.T) {
	t.Parallel()
	limit := int64(20e6)
	ch, err := newChooser("AUTO", func() int64 { return limit })
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	run := func(n int) {
		for range n {
			k, round := ch.pick()
			link := 12e6 * map[codecKind]float64{codecNone: 1, codecMinLZ: 3, codecZstd: 5}[k.kind]
			if limit > 0 {
				link = min(link, float64(limit))
			}
			now = now.Add(time.Duration(chunkSize / link * float64(time.Second)))
			ch.arrived(chunkSize, chunkSize/3, round, now)
			ch.over(round)
		}
	}
	run(100)
	if got := ch.choice(); got != "AUTO: MINLZ, MINLZ 20 MB/s" {
		t.Errorf("under a limit that every codec reaches: %s", got)
	}
	limit = 0
	run(200)
	if ch.current().kind != codecZstd {
		t.Errorf("after the limit was taken away: %s", ch.choice())
	}
	limit = 50e6 // more than MinLZ brings over this link
	run(200)
	if ch.current().kind != codecZstd {
		t.Errorf("under a limit that the link does not allow without zstd: %s", ch.choice())
	}
}

// TestAutoLooksAgain changes the link after a choice.
func TestAutoLooksAgain(t *testing.T) {
	t.Parallel()
	ch, err := newChooser("", unlimited)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	run := func(n int, rate func(codec) float64) {
		for range n {
			k, round := ch.pick()
			now = now.Add(time.Duration(chunkSize / rate(k) * float64(time.Second)))
			ch.arrived(chunkSize, chunkSize/2, round, now)
			ch.over(round)
		}
	}
	run(200, func(c codec) float64 {
		return map[codecKind]float64{codecNone: 10e6, codecMinLZ: 30e6, codecZstd: 60e6}[c.kind]
	})
	if ch.now.kind != codecZstd {
		t.Fatalf("on a slow link: %s", ch.choice())
	}
	run(4000, func(c codec) float64 {
		return map[codecKind]float64{codecNone: 800e6, codecMinLZ: 600e6, codecZstd: 150e6}[c.kind]
	})
	if ch.now.kind == codecZstd {
		t.Fatalf("on a fast link: %s", ch.choice())
	}
}

// TestAutoRemembers: an attempt after an interruption begins with what the one before has learned, but not under a limit.
func TestAutoRemembers(t *testing.T) {
	t.Parallel()
	target, state := filepath.Join(t.TempDir(), "pgdata"), t.TempDir()
	if _, err := prepare(target, state, nil, 15); err != nil {
		t.Fatal(err)
	}
	ch, err := newChooser("AUTO", unlimited)
	if err != nil {
		t.Fatal(err)
	}
	s := &seeder{o: Options{StateDir: state}, choose: ch}
	now := time.Unix(0, 0)
	for range 200 {
		k, round := ch.pick()
		now = now.Add(time.Duration(chunkSize / (12e6 * map[codecKind]float64{codecNone: 1, codecMinLZ: 3, codecZstd: 5}[k.kind]) * float64(time.Second)))
		if ch.arrived(chunkSize, chunkSize/3, round, now) {
			s.remember()
		}
		ch.over(round)
	}
	if _, err := prepare(target, state, nil, 15); err != nil { // the next attempt
		t.Fatal(err)
	}
	m, err := readMark(state)
	if err != nil || m.Codec != "ZSTD:1" {
		t.Fatalf("%q is remembered (%v), and it chose %s", m.Codec, err, ch.choice())
	}
	for _, c := range []struct {
		option, learned string
		limit           int64
		want            string
	}{
		{"AUTO", m.Codec, 0, "ZSTD:1"}, {"", m.Codec, 0, "ZSTD:1"}, {"AUTO", m.Codec, 20e6, "MINLZ"}, {"LZ4", m.Codec, 0, "LZ4"}, {"AUTO", "", 0, "MINLZ"}, {"AUTO", "GZIP", 0, "MINLZ"},
	} {
		next, err := newChooser(c.option, func() int64 { return c.limit })
		if err != nil {
			t.Fatal(err)
		}
		if next.resume(c.learned); next.current().String() != c.want {
			t.Errorf("%+v: it begins with %s", c, next.current())
		}
	}
}

// TestAutoCountsWhatItAskedFor has many questions under way: what was asked for with one codec says nothing about the next.
func TestAutoCountsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	ch, err := newChooser("AUTO", unlimited)
	if err != nil {
		t.Fatal(err)
	}
	type question struct {
		k     codec
		round int
	}
	var under []question
	now := time.Unix(0, 0)
	for range 2000 {
		for len(under) < 16 {
			k, round := ch.pick()
			under = append(under, question{k, round})
		}
		q := under[0]
		under = under[1:]
		ratio := map[codecKind]float64{codecNone: 1, codecMinLZ: 8, codecZstd: 16}[q.k.kind] // a gigabit, data that shrinks well
		rate := min(120e6*ratio, map[codecKind]float64{codecNone: 900e6, codecMinLZ: 500e6, codecZstd: 200e6}[q.k.kind])
		now = now.Add(time.Duration(chunkSize / rate * float64(time.Second)))
		ch.arrived(chunkSize, int(chunkSize/ratio), q.round, now)
		ch.over(q.round)
	}
	if ch.current().kind != codecMinLZ || strings.Contains(ch.choice(), "OFF") { // data that shrink so well are not sent as they are even to try
		t.Errorf("it settled on %s", ch.choice())
	}
}
