package codec

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

var settings = []Encoding{{}, {Codec: LZ4}, {Codec: Zstd, Level: 1}, {Codec: Zstd, Level: 3}}

// sample makes blocks like those of a walsender: some text, some noise, many sizes.
func blocks(seed uint64, n int) [][]byte {
	r := rand.New(rand.NewPCG(seed, 1))
	var out [][]byte
	for range n {
		b := make([]byte, 1+r.IntN(1<<r.IntN(18)))
		switch r.IntN(3) {
		case 0:
			for i := range b {
				b[i] = byte(r.Uint32())
			}
		case 1:
			copy(b, bytes.Repeat([]byte(fmt.Sprintf("row %d of table %d;", r.IntN(50), r.IntN(5))), len(b)/20+1))
		}
		out = append(out, b)
	}
	return out
}

// travel copies a block as a connection would.
func travel(b Block) Block {
	b.Body = bytes.Clone(b.Body)
	return b
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, s := range settings {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			var e Encoder
			var d Decoder
			defer d.Close()
			if err := e.Use(s); err != nil {
				t.Fatal(err)
			}
			var raw, coded uint64
			for i, src := range blocks(1, 400) {
				b, err := e.Encode(src)
				if err != nil {
					t.Fatal(err)
				}
				b = travel(b)
				got, err := d.Decode(b)
				if err != nil || !bytes.Equal(got, src) {
					t.Fatalf("block %d of %d bytes: %d bytes, %v", i, len(src), len(got), err)
				}
				raw, coded = raw+uint64(len(src)), coded+uint64(len(b.Body))
			}
			if st := e.Stats(); st.Raw != raw || st.Encoded != coded || s.Codec != Raw && coded >= raw {
				t.Errorf("%d bytes became %d; stats %+v", raw, coded, st)
			}
		})
	}
}

// TestChange changes the codec at every few blocks, as a link that changes does.
func TestChange(t *testing.T) {
	t.Parallel()
	var e Encoder
	var d Decoder
	defer d.Close()
	r := rand.New(rand.NewPCG(7, 7))
	for i, src := range blocks(3, 600) {
		if r.IntN(5) == 0 {
			if err := e.Use(settings[r.IntN(len(settings))]); err != nil {
				t.Fatal(err)
			}
		}
		b, err := e.Encode(src)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.Decode(travel(b)); err != nil || !bytes.Equal(got, src) {
			t.Fatalf("block %d: %v", i, err)
		}
	}
}

// TestDamage flips a bit, cuts, swaps and repeats blocks, and holds that every byte that a decoder returns was encoded.
func TestDamage(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(11, 5))
	for round := range 300 {
		var e Encoder
		var d Decoder
		if err := e.Use(settings[1+r.IntN(3)]); err != nil {
			t.Fatal(err)
		}
		list := blocks(uint64(round), 6)
		var sent []Block
		for _, src := range list {
			b, err := e.Encode(src)
			if err != nil {
				t.Fatal(err)
			}
			sent = append(sent, travel(b))
		}
		at := r.IntN(len(sent))
		if sent[at].Codec == Raw {
			continue // that is for TLS to see
		}
		body := sent[at].Body
		switch r.IntN(3) {
		case 0:
			body[r.IntN(len(body))] ^= 1 << r.IntN(8)
		case 1:
			sent[at].Body = body[:r.IntN(len(body))]
		case 2:
			sent[at].Body = append(body, byte(r.Uint32()))
		}
		for i, b := range sent {
			got, err := d.Decode(b)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("error %v", err)
				}
				break
			}
			if !bytes.Equal(got, list[i]) {
				t.Fatalf("round %d: a damaged block came out", round)
			}
		}
		d.Close()
	}
}

// TestMemory decodes a long stream and looks at what the decoder holds.
func TestMemory(t *testing.T) {
	var e Encoder
	var d Decoder
	defer d.Close()
	if err := e.Use(Encoding{Codec: Zstd}); err != nil {
		t.Fatal(err)
	}
	src := bytes.Repeat([]byte("0123456789abcdef"), MaxRaw/16)
	var before, after runtime.MemStats
	for i := range 2000 { // 500 MB
		if i == 10 {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		b, err := e.Encode(src)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Decode(b); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 4<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Setting{
		"": {Auto: true}, "auto": {Auto: true}, "OFF": {}, "lz4": {Encoding: Encoding{Codec: LZ4}},
		"ZSTD": {Encoding: Encoding{Zstd, 1}}, "zstd:9": {Encoding: Encoding{Zstd, 9}},
	} {
		if got, err := Parse("LOG_COMPRESSION", text); err != nil || got != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"GZIP", "ZSTD:", "ZSTD:0", "ZSTD:23", "LZ4:1", "OFF:1", "AUTO:3"} {
		if _, err := Parse("LOG_COMPRESSION", text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	auto, zstd1, zstd3 := Setting{Auto: true}, Encoding{Zstd, 1}, Encoding{Zstd, 3}
	for _, c := range []struct {
		name  string
		wish  Setting
		known []ID
		now   Encoding
		rtt   time.Duration
		rate  int64
		want  Encoding
	}{
		{"local network", auto, Known(), Encoding{}, 200 * time.Microsecond, 0, Encoding{}},
		{"asked for, on a local network", Setting{Encoding: zstd1}, Known(), Encoding{}, 200 * time.Microsecond, 0, zstd1},
		{"far", auto, Known(), Encoding{}, 30 * time.Millisecond, 100_000_000, zstd1},
		{"far and slow", auto, Known(), Encoding{}, 60 * time.Millisecond, 20_000_000, zstd3},
		{"far, compressing", auto, Known(), zstd1, 60 * time.Millisecond, 20_000_000, zstd1},
		{"between, off", auto, Known(), Encoding{}, 1800 * time.Microsecond, 0, Encoding{}},
		{"between, on", auto, Known(), zstd1, 1800 * time.Microsecond, 0, zstd1},
		{"an older peer", auto, []ID{Raw}, Encoding{}, 30 * time.Millisecond, 0, Encoding{}},
	} {
		if got := Choose(c.wish, c.known, c.now, Path{c.rtt, c.rate}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// FuzzDecode gives the decoder bytes that no encoder made.
func FuzzDecode(f *testing.F) {
	for _, s := range settings {
		var e Encoder
		if err := e.Use(s); err != nil {
			f.Fatal(err)
		}
		for _, src := range blocks(2, 4) {
			b, err := e.Encode(src)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(byte(b.Codec), b.First, b.Size, b.CRC, b.Body)
		}
	}
	f.Fuzz(func(t *testing.T, codec byte, first bool, size int, crc uint32, body []byte) {
		var d Decoder
		defer d.Close()
		for range 2 {
			out, err := d.Decode(Block{ID(codec), first, size, crc, body})
			if err == nil && len(out) != size {
				t.Fatalf("%d bytes instead of %d", len(out), size)
			}
			if err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
		}
	})
}

// BenchmarkZstd measures the codec on pages with rows in them, a flush per 8 KiB.
func BenchmarkZstd(b *testing.B) {
	var e Encoder
	if err := e.Use(Encoding{Codec: Zstd}); err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	var src []byte
	for len(src) < 8<<10 {
		src = fmt.Appendf(src, "%d|%d|%-40s|", r.IntN(1e6), r.IntN(10), "filler")
	}
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		if _, err := e.Encode(src); err != nil {
			b.Fatal(err)
		}
	}
}
