package wire

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
)

// samples are chunks as they occur: rows, text, incompressible bytes, and almost empty chunks.
func samples() map[string][]byte {
	noise := make([]byte, ChunkSize)
	_, _ = rand.Read(noise)
	half := bytes.Clone(noise)
	clear(half[ChunkSize/2:])
	rows := bytes.Buffer{}
	for i := 0; rows.Len() < ChunkSize; i++ {
		fmt.Fprintf(&rows, "%08d customer of the %d. warehouse, balance %d\x00", i, i%10, i*i)
	}
	return map[string][]byte{
		"rows": rows.Bytes()[:ChunkSize], "noise": noise, "half": half, "short": []byte("x"), "empty": {}, "odd": rows.Bytes()[:100_003],
	}
}

func TestCodecsGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	for name, src := range samples() {
		for _, c := range []Codec{{}, {Kind: CodecMinLZ}, {Kind: codecLZ4}, {CodecZstd, 1}, {CodecZstd, 2}, {CodecZstd, 3}, {CodecZstd, 4}} {
			out, used := c.Compress(make([]byte, 0, ChunkSize+ChunkSize/16), src)
			back, err := used.Decompress(make([]byte, 0, ChunkSize), out, len(src))
			if err != nil || !bytes.Equal(back, src) {
				t.Errorf("%s by %v (%v): %d bytes back of %d: %v", name, c, used, len(back), len(src), err)
			}
			if len(out) > len(src) {
				t.Errorf("%s by %v grew from %d to %d bytes", name, c, len(src), len(out))
			}
			if name == "rows" && c.Kind != CodecNone && len(out) > len(src)/2 {
				t.Errorf("%s by %v: %d of %d bytes", name, c, len(out), len(src))
			}
			if name == "noise" && used != CodecNone {
				t.Errorf("noise was sent by %v", used)
			}
		}
	}
}

// FuzzDecompress holds that unpacking of any input ends within its room, with an error or with exactly the announced
// number of bytes.
func FuzzDecompress(f *testing.F) {
	src := samples()["odd"]
	for kind := CodecNone; kind <= CodecZstd; kind++ {
		out, used := Codec{kind, 1}.Compress(nil, src)
		f.Add(byte(used), out, len(src))
	}
	f.Fuzz(func(t *testing.T, kind byte, body []byte, want int) {
		if want < 0 || want > ChunkSize || len(body) > maxFrame {
			return
		}
		out, err := Kind(kind).Decompress(make([]byte, 0, ChunkSize), body, want)
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
		got, auto, err := ParseCompression(c.in)
		if err != nil || auto != c.auto || got.String() != c.want {
			t.Errorf("%q is %v (auto %v, error %v), want %s", c.in, got, auto, err, c.want)
		}
	}
	for _, bad := range []string{"gzip", "LZ4:1", "ZSTD:0", "ZSTD:23", "ZSTD:x", "AUTO:1"} {
		if _, _, err := ParseCompression(bad); err == nil || !strings.Contains(err.Error(), "SEED_COMPRESSION") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
