package seeding

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/postgres/seeding/tree"
	"github.com/coteriedb/coterie/internal/postgres/seeding/wire"
)

// TestAutoFollowsLinkAndCPU gives the chooser links and processors and checks its choice.
func TestAutoFollowsLinkAndCPU(t *testing.T) {
	t.Parallel()
	type machine struct {
		link  float64 // bytes per second
		ratio map[wire.Codec]float64
		speed map[wire.Codec]float64 // bytes of files per second
	}
	s2, fast, better, off := wire.Codec{Kind: wire.CodecMinLZ}, wire.Codec{Kind: wire.CodecZstd, Level: 1}, wire.Codec{Kind: wire.CodecZstd, Level: 2}, wire.Codec{}
	speed := map[wire.Codec]float64{s2: 900e6, fast: 250e6, better: 120e6, off: 3e9}
	for _, c := range []struct {
		name string
		m    machine
		want wire.Codec
	}{
		{"slow link", machine{12e6, map[wire.Codec]float64{s2: 3, fast: 5, better: 6, off: 1}, speed}, better},
		{"gigabit", machine{120e6, map[wire.Codec]float64{s2: 3, fast: 5, better: 6, off: 1}, speed}, s2},
		{"ten gigabit", machine{1.2e9, map[wire.Codec]float64{s2: 3, fast: 5, better: 6, off: 1}, speed}, off},
		{"noise", machine{12e6, map[wire.Codec]float64{s2: 1, fast: 1, better: 1, off: 1}, speed}, s2},
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
				now = now.Add(time.Duration(wire.ChunkSize / rate * float64(time.Second)))
				ch.arrived(wire.ChunkSize, int(wire.ChunkSize/c.m.ratio[k]), round, now)
				ch.over(round)
			}
			if ch.now != c.want {
				t.Errorf("it settled on %s", ch.choice())
			}
		})
	}
}

func unlimited() int64 { return 0 }

// TestAutoUnderALimit holds that a limit is not taken for a slow link. AUTO keeps the cheapest codec that reaches the
// limit, and tries again when the limit changes.
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
			link := 12e6 * map[wire.Kind]float64{wire.CodecNone: 1, wire.CodecMinLZ: 3, wire.CodecZstd: 5}[k.Kind]
			if limit > 0 {
				link = min(link, float64(limit))
			}
			now = now.Add(time.Duration(wire.ChunkSize / link * float64(time.Second)))
			ch.arrived(wire.ChunkSize, wire.ChunkSize/3, round, now)
			ch.over(round)
		}
	}
	run(100)
	if got := ch.choice(); got != "AUTO: MINLZ, MINLZ 20 MB/s" {
		t.Errorf("under a limit that every codec reaches: %s", got)
	}
	limit = 0
	run(200)
	if ch.current().Kind != wire.CodecZstd {
		t.Errorf("after the limit was taken away: %s", ch.choice())
	}
	limit = 50e6 // more than MinLZ reaches over this link
	run(200)
	if ch.current().Kind != wire.CodecZstd {
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
	run := func(n int, rate func(wire.Codec) float64) {
		for range n {
			k, round := ch.pick()
			now = now.Add(time.Duration(wire.ChunkSize / rate(k) * float64(time.Second)))
			ch.arrived(wire.ChunkSize, wire.ChunkSize/2, round, now)
			ch.over(round)
		}
	}
	run(200, func(c wire.Codec) float64 {
		return map[wire.Kind]float64{wire.CodecNone: 10e6, wire.CodecMinLZ: 30e6, wire.CodecZstd: 60e6}[c.Kind]
	})
	if ch.now.Kind != wire.CodecZstd {
		t.Fatalf("on a slow link: %s", ch.choice())
	}
	run(4000, func(c wire.Codec) float64 {
		return map[wire.Kind]float64{wire.CodecNone: 800e6, wire.CodecMinLZ: 600e6, wire.CodecZstd: 150e6}[c.Kind]
	})
	if ch.now.Kind == wire.CodecZstd {
		t.Fatalf("on a fast link: %s", ch.choice())
	}
}

// TestAutoRemembers holds that an attempt after an interruption begins with the codec that the previous one chose, but
// not under a limit.
func TestAutoRemembers(t *testing.T) {
	t.Parallel()
	target, state := filepath.Join(t.TempDir(), "pgdata"), t.TempDir()
	if _, err := tree.Prepare(target, state, nil, 15); err != nil {
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
		now = now.Add(time.Duration(wire.ChunkSize / (12e6 * map[wire.Kind]float64{wire.CodecNone: 1, wire.CodecMinLZ: 3, wire.CodecZstd: 5}[k.Kind]) * float64(time.Second)))
		if ch.arrived(wire.ChunkSize, wire.ChunkSize/3, round, now) {
			s.remember()
		}
		ch.over(round)
	}
	if _, err := tree.Prepare(target, state, nil, 15); err != nil { // the next attempt
		t.Fatal(err)
	}
	m, err := tree.ReadUnfinished(state)
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

// TestAutoCountsWhatItAskedFor has many questions under way: answers that were requested with one codec do not count
// for the next.
func TestAutoCountsWhatItAskedFor(t *testing.T) {
	t.Parallel()
	ch, err := newChooser("AUTO", unlimited)
	if err != nil {
		t.Fatal(err)
	}
	type question struct {
		k     wire.Codec
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
		ratio := map[wire.Kind]float64{wire.CodecNone: 1, wire.CodecMinLZ: 8, wire.CodecZstd: 16}[q.k.Kind] // a gigabit, data that shrinks well
		rate := min(120e6*ratio, map[wire.Kind]float64{wire.CodecNone: 900e6, wire.CodecMinLZ: 500e6, wire.CodecZstd: 200e6}[q.k.Kind])
		now = now.Add(time.Duration(wire.ChunkSize / rate * float64(time.Second)))
		ch.arrived(wire.ChunkSize, int(wire.ChunkSize/ratio), q.round, now)
		ch.over(q.round)
	}
	if ch.current().Kind != wire.CodecMinLZ || strings.Contains(ch.choice(), "OFF") { // data that compress so well are not sent uncompressed even for a trial
		t.Errorf("it settled on %s", ch.choice())
	}
}
