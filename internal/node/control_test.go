package node

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coteriedb/coterie/internal/agent"
	"github.com/coteriedb/coterie/internal/config"
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

// TestLeavingNodeIsNotOpened holds that an agent which finds the departure of its node, once it has the lock, starts
// nothing and gives the lock back: the command goes on.
func TestLeavingNodeIsNotOpened(t *testing.T) {
	t.Parallel()
	l, err := config.NewLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(l.Run) })
	c := config.Config{Node: "w", Kind: "witness", Group: "0d5a8f7e-6f0b-4f0e-9d0c-6a4f1f5c2b11", GroupName: "orders", Endpoint: config.Address{Listen: ":5022", Advertise: "w:5022"}}
	if err := errors.Join(l.Make(), c.Save(l.Dir), os.WriteFile(l.LeavingFile(), []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openNode(l.Dir, Logs{Agent: slog.New(slog.DiscardHandler)}); err == nil || !strings.Contains(err.Error(), "leaving its group") {
		t.Errorf("it is opened: %v", err)
	}
	unlock, err := config.Lock(l)
	if err != nil {
		t.Fatalf("the lock is held: %v", err)
	}
	unlock()
}
