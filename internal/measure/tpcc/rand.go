package tpcc

import (
	"hash/fnv"
	"math/bits"
	"math/rand/v2"
	"strconv"
)

// Sizes of the population, clause 4.3.3.
const (
	items                = 100_000
	districts            = 10
	customersPerDistrict = 3000
	ordersPerDistrict    = 3000
	firstNewOrder        = 2101 // orders from here on are undelivered at first
	historyAmount        = 1000 // cents
)

// stream is one independent sequence of random numbers. Everything that is loaded comes from a stream named after the
// seed, the table and the place in it, so that a row does not depend on the order in which rows are made. The
// arithmetic on top of PCG is our own, since math/rand/v2 may change how it draws from a range, and a seed must always
// give the same bytes.
type stream struct{ pcg *rand.PCG }

func newStream(seed uint64, table string, at ...int) stream {
	h := fnv.New64a()
	_, _ = h.Write([]byte(table)) // a hash never fails
	for _, a := range at {
		_, _ = h.Write(strconv.AppendInt([]byte{'/'}, int64(a), 10))
	}
	return stream{rand.NewPCG(seed, h.Sum64())}
}

// in draws uniformly from [lo, hi]. The bias of a 64-bit multiply over these ranges is below 1 in 10^14.
func (s stream) in(lo, hi int) int {
	v, _ := bits.Mul64(s.pcg.Uint64(), uint64(hi-lo+1))
	return lo + int(v)
}

// chance is true in n of d draws.
func (s stream) chance(n, d int) bool { return s.in(1, d) <= n }

// nuRand is clause 2.1.6: the non-uniform choice with run constant c.
func (s stream) nuRand(a, c, lo, hi int) int {
	return ((s.in(0, a)|s.in(lo, hi))+c)%(hi-lo+1) + lo
}

// shuffle permutes p.
func (s stream) shuffle(p []int) {
	for i := len(p) - 1; i > 0; i-- {
		j := s.in(0, i)
		p[i], p[j] = p[j], p[i]
	}
}

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// text appends a random string of lo to hi letters and digits.
func (s stream) text(b []byte, lo, hi int) []byte {
	n := s.in(lo, hi)
	for n > 0 {
		x := s.pcg.Uint64()
		m := min(n, 10) // 62^10 < 2^64
		for range m / 2 {
			b = append(b, pairs[x%(62*62)][:]...)
			x /= 62 * 62
		}
		if m%2 == 1 {
			b = append(b, alphabet[x%62])
		}
		n -= m
	}
	return b
}

// pairs are two letters each, the first from the lower digit to base 62: a letter costs one division by a constant.
var pairs = func() (p [62 * 62][2]byte) {
	for i := range p {
		p[i] = [2]byte{alphabet[i%62], alphabet[i/62]}
	}
	return p
}()

// digits appends n random digits.
func (s stream) digits(b []byte, n int) []byte {
	for range n {
		b = append(b, byte('0'+s.in(0, 9)))
	}
	return b
}

// data is I_DATA and S_DATA: 26 to 50 characters, one row in ten with ORIGINAL in it.
func (s stream) data(b []byte) []byte {
	from := len(b)
	b = s.text(b, 26, 50)
	if s.chance(1, 10) {
		at := s.in(from, len(b)-len("ORIGINAL"))
		copy(b[at:], "ORIGINAL")
	}
	return b
}

var syllables = [10]string{"BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"}

// lastName is clause 4.3.2.3.
func lastName(n int) string {
	return syllables[n/100] + syllables[n/10%10] + syllables[n%10]
}

// constants are the run constants C of nuRand.
type constants struct{ last, customer, item int }

// loadConstants are those of the population: only C_LAST is drawn with one then.
func loadConstants(seed uint64) constants {
	return constants{last: newStream(seed, "constants").in(0, 255)}
}

// runConstants are those of a run. C_LAST's must lie at the right distance from the population's (clause 2.1.6.1).
func runConstants(seed uint64, load int) constants {
	s := newStream(seed, "run constants")
	c := constants{customer: s.in(0, 1023), item: s.in(0, 8191)}
	for {
		c.last = s.in(0, 255)
		delta := max(c.last-load, load-c.last)
		if delta >= 65 && delta <= 119 && delta != 96 && delta != 112 {
			return c
		}
	}
}
