package agent

import (
	"testing"

	"github.com/coteriedb/coterie/internal/ag"
)

// TestLate holds which standby is said to have long to replay: by what it holds, and not by what it was asked for.
func TestLate(t *testing.T) {
	at := func(l ag.LSN) ag.Position { return ag.Position{Timeline: 3, LSN: l} }
	for _, tt := range []struct {
		name string
		o    Observation
		end  ag.Position
		want bool
	}{
		{"it has replayed all", Observation{InRecovery: true, Replay: 1 << 40}, at(1 << 40), false},
		{"it has replayed more than is known to be whole", Observation{InRecovery: true, Replay: 1<<40 + 8}, at(1 << 40), false},
		{"a little is missing", Observation{InRecovery: true, Replay: 1<<40 - ag.LateReplay}, at(1 << 40), false},
		{"much is missing", Observation{InRecovery: true, Replay: 1<<40 - ag.LateReplay - 1}, at(1 << 40), true},
		{"nothing is replayed yet", Observation{InRecovery: true}, at(1 << 40), true},
		{"it is a primary", Observation{Replay: 0}, at(1 << 40), false},
	} {
		if got := late(tt.o, tt.end); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
	}
}
