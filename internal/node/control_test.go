package node

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/agent"
)

// TestSealInOwnNameOnly: a member may ask for a promise, or for readiness, in its own name only. The agent is not
// reached otherwise.
func TestSealInOwnNameOnly(t *testing.T) {
	t.Parallel()
	ready := make(chan struct{})
	close(ready)
	control, self := called(t, ready)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for method, req := range map[string]any{
		"seal": agent.SealRequest{Candidate: "n2"}, "stand-ready": agent.TakeoverRequest{From: "n2"}, "release-readers": agent.TakeoverRequest{From: "n2"},
	} {
		err := control.Call(ctx, self, method, req, nil)
		if err == nil || !strings.Contains(err.Error(), "n1 asks in the name of n2") {
			t.Errorf("%s: %v", method, err)
		}
	}
}
