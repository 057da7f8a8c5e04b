package linkem

import "math/rand/v2"

// lossModel decides which packets of one direction are lost. In bursts it is a Gilbert-Elliott chain that loses everything in
// its bad state and nothing in its good one, so that runs of losses are geometric with the mean that was asked for.
type lossModel struct {
	enter float64 // probability of the next packet being lost after one that was not
	stay  float64 // and after one that was
	bad   bool
}

// set changes the probabilities, not the state.
func (m *lossModel) set(loss, burst float64) {
	switch {
	case loss >= 1 || loss <= 0 || burst <= 1:
		m.enter, m.stay = loss, loss
	default:
		m.stay = 1 - 1/burst
		m.enter = loss / (1 - loss) / burst // balances: share lost = enter / (enter + 1/burst)
	}
}

// lose reports whether the next packet is lost.
func (m *lossModel) lose(r *rand.Rand) bool {
	p := m.enter
	if m.bad {
		p = m.stay
	}
	m.bad = p > 0 && (p >= 1 || r.Float64() < p)
	return m.bad
}
