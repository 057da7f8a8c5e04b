package tpcc

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"sync/atomic"
	"testing"
)

// copyPopulation writes a warehouse's rows as COPY takes them, and returns how many bytes that were.
func copyPopulation(tb testing.TB, to io.Writer) int64 {
	var n int64
	for _, c := range population(testSeed, 1) {
		m, err := io.Copy(to, &chunkReader{chunk: c, done: new(atomic.Int64)})
		if err != nil {
			tb.Fatal(err)
		}
		n += m
	}
	return n
}

// A seed gives the same bytes for ever: results of different versions are compared, and a load of an older one is
// completed.
func TestPopulationStaysTheSame(t *testing.T) {
	h := sha256.New()
	copyPopulation(t, h)
	if got := hex.EncodeToString(h.Sum(nil)); got != "0a8be296046dd78bb663df31c92ae1bed0e68c82d1d7e16c61cd4ed14994e7f4" {
		t.Errorf("the rows of seed %d have changed, to %s: then formatVersion has to", testSeed, got)
	}
}

// BenchmarkPopulation makes a warehouse's rows and throws them away: the cost of the loader beyond COPY.
func BenchmarkPopulation(b *testing.B) {
	for b.Loop() {
		b.SetBytes(copyPopulation(b, io.Discard))
	}
}
