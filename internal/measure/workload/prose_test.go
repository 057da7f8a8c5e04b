package workload

import (
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Text shrinks as text does: less than a constant, more than noise.
func TestProseShrinksAsTextDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var all []byte
	for range 100 {
		row := prose(nil, 4000, rng)
		if len(row) != 4000 {
			t.Fatalf("%d bytes", len(row))
		}
		all = append(all, row...)
	}
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if ratio := float64(len(all)) / float64(len(enc.EncodeAll(all, nil))); ratio < 2.5 || ratio > 7 {
		t.Errorf("it shrinks %.1fx", ratio)
	} else {
		t.Logf("it shrinks %.1fx", ratio)
	}
}
