package workload

import "math/rand/v2"

// words are drawn by rank, the first twice as often as the second, as in any text (Zipf): such rows shrink as real ones
// do.
var words = [...]string{
	"the", "of", "and", "to", "in", "is", "for", "on", "that", "was", "with", "order", "customer", "at", "by", "from", "invoice", "item", "not", "are", "delivery",
	"account", "were", "payment", "address", "which", "please", "before", "warehouse", "district", "amount", "shipped", "confirmed", "street", "number", "after",
	"without", "because", "returned", "received", "credit", "balance", "available", "requested", "quantity", "between", "description", "cancelled", "reference",
	"department", "telephone", "November", "supplier", "production", "transport", "insurance", "temperature", "replacement", "individual", "approximately",
}

var wordShares = func() (upTo [len(words)]float64) {
	sum := 0.0
	for i := range upTo {
		sum += 1 / float64(i+1)
		upTo[i] = sum
	}
	return upTo
}()

// prose appends n bytes of words, numbers among them.
func prose(b []byte, n int, rng *rand.Rand) []byte {
	for end := len(b) + n; ; b = append(b, ' ') {
		x := rng.Float64() * wordShares[len(wordShares)-1]
		i := 0
		for wordShares[i] < x {
			i++
		}
		b = append(b, words[i]...)
		if rng.IntN(12) == 0 {
			b = append(b, ' ', byte('0'+rng.IntN(10)), byte('0'+rng.IntN(10)), byte('0'+rng.IntN(10)), byte('0'+rng.IntN(10)))
		}
		if len(b) >= end {
			return b[:end]
		}
	}
}
